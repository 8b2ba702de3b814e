// Viser knows one look for all browsers, with which each begins: this one tells its own page of another.
(() => {
  const dress = () => {
    const page = window.__viserMutable, light = document.documentElement.dataset.ssTheme === "light";
    if (!page?.messageQueue || light === (window.splatstudioLight ?? false)) return;
    window.splatstudioLight = light;
    page.messageQueue.push({...window.splatstudio.lightTheme, dark_mode: !light});
    page.requestRender();
    if (document.hidden) page.drainMessageQueue?.();
  };
  window.splatstudioLight = false;  // the studio has told it so again, as after a cut line
  if (!window.splatstudioDressed) addEventListener("splatstudio-theme", dress);
  dress();
})();

// What viser's page lacks. A page that connects again gets this once more, and keeps what it has.
// `splatstudio` holds what the studio hands over: the style sheet, and where to ask whether it is still there.
(() => {
  if (window.splatstudioDressed) return;
  window.splatstudioDressed = true;

  const style = document.createElement("style");
  style.textContent = window.splatstudio.css;
  document.head.append(style);

  // The browser's tab tells what is open and how it stands.
  setInterval(() => {
    const text = name => document.querySelector(`[data-splatstudio="${name}"]`)?.textContent ?? "";
    const title = [text("name"), text("state")].filter(Boolean).join(" · ");
    document.title = title ? `${title} – splatstudio` : "splatstudio";
  }, 1000);

  // A box that was ticked and a list that was chosen from keep the keyboard, and viser gives no commands then.
  // Only after a click (detail > 0): who works with the keyboard stays where he is.
  document.addEventListener("click", event => {
    const target = event.target;
    const chosen = target.closest?.("[role=option]") || target.matches?.("input[type=checkbox]");
    // At once, and again after a list that closes has taken the focus back.
    if (event.detail > 0 && chosen)
      for (const wait of [0, 150]) setTimeout(() => document.activeElement?.blur(), wait);
  }, true);

  // viser's camera moves with Ctrl+A and Ctrl+S, too, as it does with the letters alone. It hears them at the
  // document, the commands at its element.
  document.documentElement.addEventListener("keydown", event => {
    if ((event.ctrlKey || event.metaKey || event.altKey) && event.key.length === 1) event.stopPropagation();
  });

  // viser's camera moves with the arrow keys wherever the keyboard is, but for fields of text: also while a
  // slider is moved, or a tab or an option is chosen with them.
  for (const kind of ["keydown", "keyup"])
    document.body.addEventListener(kind, event => {
      const control = event.target.closest?.("[role=slider], [role=tab], [role=option], input");
      if (control && event.key.startsWith("Arrow")) event.stopPropagation();
    });

  // viser shows the hint of a control over its field alone; most people look for it over its name.
  const hinted = event => {
    const label = event.target.closest?.("label[for]:not(:has([data-photo]))");
    if (!label || label.contains(event.relatedTarget)) return null;
    return label.closest(".mantine-Flex-root")?.lastElementChild?.firstElementChild;
  };
  document.addEventListener("mouseover", event => hinted(event)?.dispatchEvent(new MouseEvent("mouseenter")));
  document.addEventListener("mouseout", event => hinted(event)?.dispatchEvent(new MouseEvent("mouseleave")));

  // A field of viser's reads "-0" as the number 0 and writes that back: of a typed -0.22 the sign was lost. It
  // hears nothing of what is no number yet; then all of it at once, as if it was pasted, for it compares with
  // what it heard last. When it is drawn anew meanwhile it shows what it has heard: what was begun comes back.
  // Of 1e-5 it takes no e: that is written out when it is left.
  const exponent = /^-?\d*\.?\d+e[-+]?\d*$/i;
  const unfinished = text => /^-0?\.?0*$/.test(text) || exponent.test(text);
  const begun = field => field.matches?.(".mantine-NumberInput-input") && unfinished(field.value);
  const ended = text => {
    if (text.includes("e") || text.includes("E"))
      return Math.abs(Number(text)) < 1e15 ? Number(text).toFixed(12).replace(/\.?0+$/, "") : heard;
    return text.includes("0") ? "0" : heard;  // what never became a number is forgotten, but for -0
  };
  let held = null, typed = "", heard = "", passing = false;
  const write = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value").set;
  const pass = (field, text) => {
    passing = true;
    write.call(field, heard);
    field.select();
    field.dispatchEvent(new KeyboardEvent("keydown", {key: "Unidentified", bubbles: true}));
    document.execCommand("insertText", false, text);
    passing = false;
    held = null;
  };
  addEventListener("beforeinput", event => {
    if (passing) return;
    if (held !== event.target) heard = event.target.value;
    else if (held.value !== typed) write.call(held, typed);
  }, true);
  addEventListener("input", event => {
    const field = event.target;
    if (passing) return;
    if (begun(field)) [held, typed] = [field, field.value];
    else if (held !== field) return;
    event.stopImmediatePropagation();
    if (!begun(field)) pass(field, field.value);
  }, true);
  addEventListener("focusout", event => {
    if (held !== event.target) return;
    write.call(held, ended(typed));
    held = null;
    passing = true;
    event.target.dispatchEvent(new InputEvent("input", {bubbles: true}));
    passing = false;
  }, true);

  // Of a path that is longer than its field the end is shown, which tells files apart, and all of it as a tooltip.
  setInterval(() => {
    for (const field of document.querySelectorAll(".mantine-TextInput-input")) {
      const long = field.scrollWidth > field.clientWidth && /[/\\]/.test(field.value);
      if (field.title !== (long ? field.value : "")) field.title = long ? field.value : "";
      if (long && document.activeElement !== field) field.scrollLeft = field.scrollWidth;
    }
  }, 300);

  // What a button has started is seen below it, and what came of it, a file with its size: both are brought to
  // sight where they appear. Nothing else is: what moves by itself is not there any more for the mouse.
  // It stays there as what is above it comes as well, until somebody touches the page.
  let seen = null, come = "", until = 0;
  const results = () => [...document.querySelectorAll("#root button")].filter(each =>
    each.offsetParent && /^(Cancel|Download .*\))$/.test(each.textContent));
  const labels = () => results().map(each => each.textContent);
  document.addEventListener("click", event => { if (event.target.closest?.("button")) seen = labels(); }, true);
  for (const touch of ["pointerdown", "wheel", "keydown"]) addEventListener(touch, () => { until = 0; }, true);
  setInterval(() => {
    const fresh = seen && labels().find(each => !seen.includes(each));
    if (fresh) [seen, come, until] = [labels(), fresh, performance.now() + 10000];
    if (performance.now() > until) return;
    results().find(each => each.textContent === come)?.scrollIntoView({block: "nearest", behavior: "smooth"});
  }, 250);

  // viser grays its controls out when the studio is gone, without a word. A studio that was started anew has
  // another address, and lets this page in no more. A line that is cut may let a question wait for minutes.
  let missed = 0, told = null;
  const say = text => {
    if (text && !told) {
      told = document.createElement("div");
      told.setAttribute("role", "alert");
      told.className = "ss-lost";
      document.body.append(told);
    }
    if (told && !text) { told.remove(); told = null; }
    if (told && told.textContent !== text) told.textContent = text;
  };
  setInterval(async () => {
    if (document.hidden) return;
    const patience = AbortSignal.timeout(20000);
    const answer = await fetch(window.splatstudio.stillHere, {cache: "no-store", signal: patience})
      .catch(() => null);
    await answer?.text?.().catch(() => null);  // or the browser counts the request as one that failed
    // The start page has come in the place of the studio, at the same address.
    if (answer?.status === 205) location.reload();
    missed = answer?.ok ? 0 : missed + 1;
    say(missed < 2 ? "" : answer?.status === 403
      ? "The studio was restarted: open the address that it has printed, and close this page."
      : "No connection to the studio. What was saved is safe. If the studio was closed, start it again and "
        + "open the address that it prints; if the connection dropped, this page will reconnect.");
  }, 2500);

  // The photos of the list are labels, which have no keys of their own. The list is drawn anew when one is
  // chosen or a score has changed, and the keyboard stays at the photo where it was.
  let last = null;
  const photo = event => event.target.closest?.("[data-photo]") ?? null;
  document.addEventListener("keydown", event => {
    if (!photo(event) || !["Enter", " "].includes(event.key)) return;
    event.preventDefault();
    event.stopPropagation();
    if (!event.repeat) photo(event).click();
  }, true);
  document.addEventListener("focusin", event => { last = photo(event); }, true);
  document.addEventListener("pointerdown", () => { last = null; }, true);
  setInterval(() => {
    if (!last || last.isConnected || document.activeElement !== document.body) return;
    const same = each => each.dataset.photo === last.dataset.photo;
    last = [...document.querySelectorAll("[data-photo]")].find(same) ?? null;
    last?.focus({focusVisible: true});
  }, 100);

  // A point of viser's grows without bound for who comes near, and then covers what one looks at.
  const largest = 10;  // px
  setInterval(() => {
    window.__viserMutable?.scene?.traverse(({isPoints, material}) => {
      const grows = "gl_PointSize = (scale / -world_pos.z);";
      if (!isPoints || !material?.vertexShader?.includes(grows)) return;
      const bound = (largest * devicePixelRatio).toFixed(1);
      material.vertexShader = material.vertexShader.replace(grows, `gl_PointSize = min(scale / -world_pos.z, ${bound});`);
      material.needsUpdate = true;
      window.__viserMutable.requestRender();
    });
  }, 250);

  // viser tells at each opening that a browser draws without a GPU: who was told once knows.
  const once = "splatstudio-told-of-no-gpu";
  let looks = 0;
  const looking = setInterval(() => {
    const notice = [...document.querySelectorAll(".mantine-Notification-root")]
      .find(each => each.textContent.startsWith("Software WebGL rendering detected"));
    if (!notice && ++looks < 100) return;
    clearInterval(looking);
    try {
      if (notice && localStorage.getItem(once)) notice.querySelector("button").click();
      else if (notice) localStorage.setItem(once, "yes");
    } catch { /* a browser that keeps nothing is told each time */ }
  }, 100);

  // Both docks leave little of a narrow window: there the one at the left is folded at first, never that with the
  // buttons. On a phone there are none; a page that is turned there gets them.
  let width = Infinity, looked = 0;
  const fit = () => {
    const collapse = document.querySelector("[data-dock-region-collapse=left][aria-expanded=true]");
    if (innerWidth < 1100 && width >= 1100 && collapse) {
      collapse.click();
      document.activeElement?.blur();  // a folded dock takes the keyboard
    }
    width = innerWidth <= 576 ? Infinity : innerWidth;
  };
  const docked = setInterval(() => {
    if (!document.querySelector("[data-dock-region-collapse=left]") && ++looked < 100) return;
    clearInterval(docked);
    fit();
    addEventListener("resize", () => setTimeout(fit, 300));  // viser lays its docks out after it, too
  }, 100);

  // A chart that is made, or gets other ranges, before it is laid out or in a tab not shown finds no room for
  // the numbers of its x axis, and now and then does not look again when it has some.
  setInterval(() => {
    for (const {chart} of Object.values(window.__viserTestpoints?.uplots ?? {}))
      if (chart.width > 0 && !(chart.axes[0]._found?.[1] > 0)) chart.redraw(false, true);
  }, 250);
})();
