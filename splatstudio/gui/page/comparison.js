// The halves of a picture that compares two: a name at the top corner of each, and the line between them, which is
// dragged where it is seen. `splatstudioHalves` is told anew when anything of it changes.
// A page that connects again gets this once more, and keeps what it has.
(() => {
  if (window.splatstudioCompares) return;
  window.splatstudioCompares = true;

  const near = 8, least = 36;  // px: around the line, and of a half that has room for a name
  let told = null, share = null, dragged = null;
  const line = () => {
    if (told !== window.splatstudioHalves) {
      told = window.splatstudioHalves;
      if (!dragged) share = null;
    }
    const canvas = document.querySelector("canvas[data-engine]");
    if (!told || !canvas) return null;
    const box = canvas.getBoundingClientRect();
    const left = box.left + told.span[0] * box.width, width = told.span[1] * box.width;
    return {box, left, width, at: left + (share ?? told.share) * width};
  };

  const names = ["left", "right"].map(side => {
    const name = document.createElement("div");
    name.className = "ss-half";
    name.dataset.side = side;
    return name;
  });
  const place = () => {
    const now = line();
    for (const name of names) {
      if (!now) { name.remove(); continue; }
      const [from, to] = name.dataset.side === "left"
        ? [Math.max(now.left, now.box.left), Math.min(now.at, now.box.right)]
        : [Math.max(now.at, now.box.left), Math.min(now.left + now.width, now.box.right)];
      if (name.textContent !== told[name.dataset.side]) name.textContent = told[name.dataset.side];
      name.style.display = to - from < least ? "none" : "";
      name.style.top = `${now.box.top + 8}px`;
      name.style.maxWidth = `${to - from - 16}px`;
      if (name.dataset.side === "left") name.style.left = `${from + 8}px`;
      else name.style.right = `${innerWidth - to + 8}px`;
      if (!name.isConnected) document.body.append(name);
    }
  };
  setInterval(place, 100);

  // viser's own slider and the studio hear of it alike, also while the dock is folded up.
  const move = value => {
    const page = window.__viserMutable;
    const message = {type: "GuiUpdateMessage", uuid: told.slider, updates: {value}};
    share = value;
    page.messageQueue.push(message);
    page.sendMessage(message);
    page.requestRender();
    place();
  };

  const onLine = event => {
    const now = event.target.tagName === "CANVAS" && window.__viserMutable?.messageQueue ? line() : null;
    return now && Math.abs(event.clientX - now.at) <= near;
  };
  let waiting = null;
  addEventListener("pointerdown", event => {
    if (event.button || !onLine(event)) return;
    event.stopImmediatePropagation();
    event.preventDefault();
    dragged = event.target;
    dragged.setPointerCapture(event.pointerId);
  }, true);
  addEventListener("pointermove", event => {
    if (dragged && !event.buttons) dragged = null;  // it was let go where nobody heard of it
    if (dragged) {
      event.stopImmediatePropagation();
      // Once for each picture of the browser: a mouse tells its place far more often.
      if (waiting === null) requestAnimationFrame(() => {
        const now = line(), x = waiting;
        waiting = null;
        if (now) move(Math.round(100 * Math.min(Math.max((x - now.left) / now.width, 0), 1)) / 100);
      });
      waiting = event.clientX;
    } else if (event.target.tagName === "CANVAS" && !event.buttons) {
      // viser has a hand there over what can be clicked.
      const style = event.target.style;
      if (onLine(event)) style.cursor = "ew-resize";
      else if (style.cursor === "ew-resize") style.cursor = "";
    }
  }, true);
  for (const kind of ["pointerup", "pointercancel"])
    addEventListener(kind, event => {
      if (!dragged) return;
      event.stopImmediatePropagation();
      dragged = null;
    }, true);
})();
