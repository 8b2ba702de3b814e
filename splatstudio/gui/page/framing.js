// What a video will show of the picture, while its path is played or a place on it is looked at: the rest is dim.
// `splatstudioFraming` is its width over its height, null: no video is looked at.
(() => {
  if (window.splatstudioFrames) return;
  window.splatstudioFrames = true;

  const frame = document.createElement("div");
  frame.className = "ss-framing";
  const inside = document.createElement("div");
  frame.append(inside);
  setInterval(() => {
    const aspect = window.splatstudioFraming, canvas = document.querySelector("canvas[data-engine]");
    if (!aspect || !canvas) { frame.remove(); return; }
    const box = canvas.getBoundingClientRect();
    Object.assign(frame.style, {left: `${box.left}px`, top: `${box.top}px`, width: `${box.width}px`,
      height: `${box.height}px`});
    const width = Math.min(box.width, aspect * box.height);
    Object.assign(inside.style, {width: `${width}px`, height: `${width / aspect}px`});
    if (!frame.isConnected) document.body.append(frame);
  }, 100);

  // Who takes the camera leaves the path.
  for (const kind of ["pointerdown", "wheel"])
    addEventListener(kind, event => {
      if (event.target.tagName === "CANVAS") window.splatstudioFraming = null;
    }, {capture: true, passive: true});
})();
