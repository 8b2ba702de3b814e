// What a video will show of the picture, while its path is played or a place on it is looked at: the rest is dim.
// `splatstudioFraming` has its width over its height, and until when it is shown (ms of performance.now, null: until
// it is taken away); null: no video is looked at. A page that connects again begins without.
(() => {
  window.splatstudioFraming = null;
  if (window.splatstudioFrames) return;
  window.splatstudioFrames = true;

  const frame = document.createElement("div");
  frame.className = "ss-framing";
  const inside = document.createElement("div");
  frame.append(inside);
  setInterval(() => {
    const told = window.splatstudioFraming, canvas = document.querySelector("canvas[data-engine]");
    if (!told || !canvas || (told.until && performance.now() > told.until)) { frame.remove(); return; }
    const aspect = told.aspect;
    const box = canvas.getBoundingClientRect();
    Object.assign(frame.style, {left: `${box.left}px`, top: `${box.top}px`, width: `${box.width}px`,
      height: `${box.height}px`});
    const width = Math.min(box.width, aspect * box.height);
    Object.assign(inside.style, {width: `${width}px`, height: `${width / aspect}px`});
    if (!frame.isConnected) document.body.append(frame);
  }, 100);

  // Who takes the camera leaves the path, unless it is being played.
  for (const kind of ["pointerdown", "wheel", "keydown"])
    addEventListener(kind, event => {
      const elsewhere = kind === "keydown" ? event.target.matches("input, textarea, [role=slider]")
        : event.target.tagName !== "CANVAS";
      if (!elsewhere && window.splatstudioFraming?.until) window.splatstudioFraming = null;
    }, {capture: true, passive: true});
})();
