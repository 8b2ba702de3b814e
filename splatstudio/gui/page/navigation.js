// How one moves through the scene, as far as it needs no answer of the studio. A page that connects again gets this
// once more, and keeps what it has. viser shows its camera to those who test it: without that, viser's own ways stay.
(() => {
  if (window.splatstudioMoves) return;
  window.splatstudioMoves = true;

  const viewer = () => window.__viserMutable;
  const scene = target => target?.matches?.("canvas[data-engine]") ?? false;
  const typing = target => target?.closest?.("input, textarea, select, [contenteditable]");
  const state = name => document.querySelector(`[data-splatstudio="${name}"]`)?.textContent ?? "";

  // What this browser keeps for the next visit; where it may not, until the page is closed.
  const kept = {};
  const recall = name => {
    try { return kept[name] ?? localStorage.getItem(`splatstudio-${name}`); } catch { return kept[name] ?? null; }
  };
  const keep = (name, value) => {
    kept[name] = String(value);
    try { localStorage.setItem(`splatstudio-${name}`, value); } catch { /* it holds until the page is closed */ }
  };

  // viser's camera flies two units a second, however large the scene is, and over the ground, not where one looks.
  const ways = {
    KeyW: [0, 0, -1], KeyS: [0, 0, 1], KeyD: [1, 0, 0], KeyA: [-1, 0, 0], KeyE: [0, 1, 0], KeyQ: [0, -1, 0],
  };
  const held = new Set();
  let fast = false, flying = false, last = 0;
  const speed = () => 2 ** (Number(recall("speed")) || 0);
  const size = () => Number(document.querySelector("[data-distance]")?.dataset.distance) || 1;
  const fly = now => {
    const camera = viewer()?.cameraControl;
    if (!camera?.enabled) held.clear();
    flying = held.size > 0;
    if (!flying) return;
    const way = 0.6 * size() * speed() * (fast ? 3 : 1) * Math.min(now - last, 100) / 1000;
    last = now;
    const target = camera.getTarget(viewer().camera.position.clone());
    for (const key of held)
      target.addScaledVector(target.clone().set(...ways[key]).applyQuaternion(viewer().camera.quaternion), way);
    camera.moveTo(target.x, target.y, target.z, false);
    viewer().requestRender();
    requestAnimationFrame(fly);
  };
  addEventListener("keydown", event => {
    fast = event.shiftKey;
    if (!(event.code in ways) || event.ctrlKey || event.metaKey || event.altKey || typing(event.target)) return;
    if (!viewer()?.cameraControl) return;
    event.stopImmediatePropagation();
    held.add(event.code);
    if (flying) return;
    flying = true;
    last = performance.now();
    requestAnimationFrame(fly);
  }, true);
  addEventListener("keyup", event => {
    fast = event.shiftKey;
    held.delete(event.code);
  }, true);
  addEventListener("blur", () => held.clear());

  let told = null, telling = 0;
  const tell = text => {
    if (!told) {
      told = document.createElement("div");
      told.className = "ss-speed";
      document.body.append(told);
    }
    told.textContent = text;
    told.hidden = false;
    clearTimeout(telling);
    telling = setTimeout(() => { told.hidden = true; }, 1200);
  };
  const fastest = 4;  // powers of two
  const setSpeed = power => {
    keep("speed", Math.min(Math.max(power, -fastest), fastest));
    tell(`Fly speed ${Number(speed().toPrecision(2))}×`);
  };
  addEventListener("wheel", event => {
    if (!held.size || !scene(event.target) || !event.deltaY) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    setSpeed((Number(recall("speed")) || 0) - Math.sign(event.deltaY) / 4);
  }, {capture: true, passive: false});

  // The studio hears a click with Shift, and answers with where to fly: a double click is one. Over a camera the
  // mouse is a hand, and the first click of the two has entered it; the line between two pictures has its own arrow.
  // The studio does not read the ray.
  addEventListener("dblclick", event => {
    if (!scene(event.target) || event.button || event.shiftKey) return;
    if (["pointer", "ew-resize"].includes(event.target.style.cursor)) return;
    const box = event.target.getBoundingClientRect();
    const place = [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
    viewer()?.sendMessage({
      type: "ScenePointerMessage", event_type: "click", ray_origin: [0, 0, 0], ray_direction: [0, 0, 1],
      screen_pos: [place], modifier: "shift",
    });
  });
  addEventListener("keydown", event => {
    if (event.key !== "?" || typing(event.target)) return;
    const key = {key: "h", code: "KeyH", bubbles: true};
    document.documentElement.dispatchEvent(new KeyboardEvent("keydown", key));
  });

  // The axes of the scene, in the corner of the picture.
  const svg = name => document.createElementNS("http://www.w3.org/2000/svg", name);
  const radius = 26, middle = 38;
  const axes = svg("svg");
  axes.classList.add("ss-axes");
  axes.setAttribute("viewBox", `0 0 ${2 * middle} ${2 * middle}`);
  axes.setAttribute("aria-hidden", "true");
  const arms = ["x", "y", "z"].map((name, number) => {
    const arm = svg("g"), line = svg("line"), letter = svg("text");
    arm.dataset.axis = name;
    line.setAttribute("x1", middle);
    line.setAttribute("y1", middle);
    letter.textContent = name.toUpperCase();
    arm.append(line, letter);
    return {arm, line, letter, along: [0, 1, 2].map(each => Number(each === number))};
  });
  axes.append(...arms.map(each => each.arm));
  let drawn = "";
  const turned = () => {
    const {camera, canvas, nodeRefFromName} = viewer() ?? {}, world = nodeRefFromName?.[""];
    if (!camera || !canvas?.isConnected || !world) return;
    const box = canvas.getBoundingClientRect();
    const seen = [...camera.quaternion.toArray(), ...world.quaternion.toArray(), box.left, box.bottom].join();
    axes.style.display = recall("axes") === "false" ? "none" : "";
    if (seen === drawn) return;
    drawn = seen;
    axes.style.left = `${box.left + 8}px`;
    // In a window as narrow as a phone the dock lies over the lower half of the picture: see page.css.
    axes.style.top = `${innerWidth <= 576 ? box.top + 8 : box.bottom - 2 * middle - 8}px`;
    const into = camera.quaternion.clone().invert().multiply(world.quaternion);
    const places = arms.map(each => ({each, to: camera.position.clone().set(...each.along).applyQuaternion(into)}));
    places.sort((one, other) => one.to.z - other.to.z);  // the nearest is drawn last
    for (const {each: {arm, line, letter}, to} of places) {
      line.setAttribute("x2", middle + radius * to.x);
      line.setAttribute("y2", middle - radius * to.y);
      letter.setAttribute("x", middle + (radius + 7) * to.x);
      letter.setAttribute("y", middle - (radius + 7) * to.y);
      axes.append(arm);
    }
    if (!axes.isConnected) document.body.append(axes);
  };
  setInterval(turned, 100);

  // Who loads the page again stands where they stood, at the tabs that were open. The session's storage is this tab's
  // of the browser; what is told of another project, or of a page that was closed, is of no use.
  const remembered = () => {
    try { return JSON.parse(sessionStorage.getItem("splatstudio-place") ?? "null"); } catch { return null; }
  };
  const pose = () => {
    const {camera, cameraControl} = viewer() ?? {};
    if (!camera || !cameraControl) return null;
    const target = cameraControl.getTarget(camera.position.clone());
    return {position: camera.position.toArray(), target: target.toArray(), up: camera.up.toArray(), fov: camera.fov};
  };
  const chosenTabs = () => [...document.querySelectorAll('[role="tab"][aria-selected="true"]')].map(tab => tab.innerText);
  addEventListener("pagehide", () => {
    const place = {name: state("name"), pose: pose(), tabs: chosenTabs()};
    if (!place.name || !place.pose) return;
    try { sessionStorage.setItem("splatstudio-place", JSON.stringify(place)); } catch { /* it is not remembered */ }
  });
  const stand = ({position, target, up, fov}) => {
    const {camera, cameraControl} = viewer();
    camera.up.set(...up);
    cameraControl.updateCameraUp();
    camera.fov = fov;
    camera.updateProjectionMatrix();
    cameraControl.setLookAt(...position, ...target, false);
    viewer().requestRender();
  };
  const again = performance.getEntriesByType("navigation")[0]?.type === "reload" ? remembered() : null;
  let moved = false, left = 20;
  // The studio's own first view comes in steps, of which the last may be late.
  const stay = () => {
    if (moved || left-- === 0) return;
    const away = pose().position.map((value, axis) => value - again.pose.position[axis]);
    if (Math.hypot(...away) > 1e-3 * size()) stand(again.pose);
    setTimeout(stay, 100);
  };
  const turnBack = () => {
    if (moved) return;
    if (!pose() || !state("name")) return setTimeout(turnBack, 100);
    if (again.name !== state("name")) return;
    stand(again.pose);
    stay();
    turnTabs();
  };
  // The docks may be drawn later than the view.
  let tries = 300;
  const turnTabs = () => {
    if (moved || tries-- === 0) return;
    for (const tab of document.querySelectorAll('[role="tab"][aria-selected="false"]')) {
      if (!again.tabs.includes(tab.innerText)) continue;
      for (const kind of ["pointerdown", "pointerup"])  // a tab that is dragged goes into another panel
        tab.dispatchEvent(new PointerEvent(kind, {bubbles: true, pointerId: 1, isPrimary: true}));
    }
    const chosen = chosenTabs();
    if (again.tabs.some(name => !chosen.includes(name))) setTimeout(turnTabs, 100);
  };
  if (again?.pose) {
    for (const begin of ["pointerdown", "wheel", "keydown"])  // but not by what is done here
      addEventListener(begin, event => { moved ||= event.isTrusted; }, true);
    turnBack();
  }

  // The controls of this browser alone. The page draws them anew at each visit of their tab.
  const possible = "Notification" in window && window.isSecureContext;
  const wanted = () => possible && recall("notify") === "true" && Notification.permission === "granted";
  const own = name => document.querySelector(`[data-own="${name}"]`);
  addEventListener("input", async event => {
    const control = event.target;
    if (control.dataset?.own === "speed") setSpeed(Number(control.value));
    if (control.dataset?.own === "axes") keep("axes", control.checked);
    if (control.dataset?.own !== "notify") return;
    keep("notify", control.checked);
    if (control.checked && await Notification.requestPermission() !== "granted") {
      keep("notify", false);
      tell("This browser does not allow notifications of this page");
    }
  }, true);
  let before = "";
  setInterval(() => {
    const slider = own("speed"), box = own("notify"), shown = own("axes");
    if (slider && document.activeElement !== slider) slider.value = Number(recall("speed")) || 0;
    const theme = own("theme");
    if (theme && document.activeElement !== theme) theme.value = recall("theme") ?? "dark";
    if (shown) shown.checked = recall("axes") !== "false";
    if (box) {
      box.disabled = !possible;
      box.title = possible ? "" : "Browsers allow it on this machine's own pages and over https alone.";
      box.checked = wanted();
    }
    const now = state("state");
    if (wanted() && before.startsWith("Training") && /^(Finished|Failed|Saved model)/.test(now))
      new Notification(`${state("name")}: ${now}`, {tag: "splatstudio"});
    if (now) before = now;
  }, 500);
})();
