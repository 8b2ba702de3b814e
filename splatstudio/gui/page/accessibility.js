// What viser's page lacks for the keyboard, and for who hears it: names of fields, ways into folders, one main part.
// A page that connects again gets this once more, and keeps what it has.
(() => {
  if (window.splatstudioNames) return;
  window.splatstudioNames = true;

  const name = (element, text) => {
    if (text && element.getAttribute("aria-label") !== text) element.setAttribute("aria-label", text);
  };

  // A label names the field that has its number; viser gives that to some fields alone. The others stand beside it.
  const nameFields = () => {
    for (const label of document.querySelectorAll("label[for]")) {
      const fields = [...label.closest(".mantine-Flex-root")?.lastElementChild?.querySelectorAll(
        "input:not([type=hidden]), textarea, [role=slider]") ?? []];
      const numbers = fields.filter(field => field.matches("input"));
      for (const field of fields.filter(field => field.id !== label.htmlFor)) {
        const number = numbers.length > 1 ? numbers.indexOf(field) : -1;
        name(field, number < 0 ? label.textContent : `${label.textContent}, ${"XYZ"[number] ?? number + 1}`);
      }
      // Those who see the three numbers of a point find the axis in each.
      if (numbers.length === 3) numbers.forEach((field, number) => { field.parentElement.dataset.ssAxis = "xyz"[number]; });
    }
  };

  // A list opens when the keyboard comes to it, over what comes next: it opens by Enter or an arrow, as others do.
  let byKeyboard = false;
  addEventListener("keydown", event => { byKeyboard = event.key === "Tab"; }, true);
  addEventListener("pointerdown", () => { byKeyboard = false; }, true);
  addEventListener("focusin", ({target}) => {
    if (!byKeyboard || !target.matches?.("input[aria-haspopup=listbox]")) return;
    const close = () => target.dispatchEvent(new KeyboardEvent("keydown", {key: "Escape", code: "Escape", bubbles: true}));
    requestAnimationFrame(() => { if (target.getAttribute("aria-expanded") === "true") close(); });
  }, true);

  // A folder's title is a box that hears clicks.
  const openFolders = () => {
    for (const mark of document.querySelectorAll(
      ".mantine-Paper-root > .mantine-Paper-root > :is(.tabler-icon-chevron-down, .tabler-icon-chevron-up)")) {
      const title = mark.parentElement;
      title.setAttribute("role", "button");
      title.tabIndex = 0;
      title.setAttribute("aria-expanded", String(mark.matches(".tabler-icon-chevron-up")));
      title.classList.add("ss-title");
    }
  };
  document.addEventListener("keydown", event => {
    if (!event.target.matches?.(".ss-title") || !["Enter", " "].includes(event.key)) return;
    event.preventDefault();
    event.stopPropagation();
    if (!event.repeat) event.target.click();
  }, true);

  // A dialog goes away as people expect it: by Escape, and by a click beside it.
  const leaveDialog = () => [...document.querySelectorAll(".mantine-Modal-content button")]
    .findLast(button => ["Close", "Cancel"].includes(button.textContent.trim()))?.click();
  document.addEventListener("keydown", event => {
    const list = document.querySelector("[aria-haspopup=listbox][aria-expanded=true]");
    if (event.key === "Escape" && list === null) leaveDialog();
  });
  document.addEventListener("mousedown", event => {
    if (event.target.matches?.(".mantine-Modal-inner, .mantine-Modal-overlay")) leaveDialog();
  });

  const nameOthers = () => {
    const named = [
      [".mantine-Notification-closeButton", "Close this notice"],
      ["button:has(.tabler-icon-list-search)", "All commands"],
      [".mantine-ColorInput-root button", "Take a color from the screen"],
      ["[role=progressbar]", "Progress"],
    ];
    for (const [which, text] of named)
      for (const element of document.querySelectorAll(`${which}:not([aria-label])`)) name(element, text);
    document.getElementById("root")?.setAttribute("role", "main");
    if (document.querySelector("h1")) return;
    const head = document.createElement("header"), title = document.createElement("h1");
    head.className = "ss-unseen";
    title.textContent = "splatstudio";
    head.append(title);
    document.body.prepend(head);
  };

  const look = () => {
    nameFields();
    openFolders();
    nameOthers();
  };
  // At most a few times a second: a training draws figures anew all the time.
  let waits = false;
  new MutationObserver(() => {
    if (waits) return;
    waits = true;
    setTimeout(() => { waits = false; look(); }, 300);
  }).observe(document.body, {childList: true, subtree: true});
  look();
})();
