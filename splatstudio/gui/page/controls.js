// Viser sends one change of all controls in 50 ms, and of more of them only the last one. Of three switches that
// are pressed while the page is busy the second would stay unknown to the studio, though it looks pressed, and
// of a number the last digit, where a button is pressed right after it. Here each control has its own 50 ms, and
// what was changed before is sent before.
(() => {
  const page = window.__viserMutable, interval = 50;
  if (!page || window.splatstudioControls === page) return;
  window.splatstudioControls = page;

  let send = page.sendMessage;
  const waiting = new Map();  // by control, while its time runs: its next change, or null
  const change = message => {
    for (const [other, next] of waiting)
      if (next && other !== message.uuid) {
        waiting.set(other, null);
        send(next);
      }
    if (waiting.has(message.uuid)) {
      waiting.set(message.uuid, message);
      return;
    }
    waiting.set(message.uuid, null);
    send(message);
    setTimeout(() => {
      const next = waiting.get(message.uuid);
      waiting.delete(message.uuid);
      if (next) change(next);
    }, interval);
  };

  // Viser begins its own 50 ms as soon as it has sent something: they are over at once.
  const spareViserItsWait = () => {
    const begin = window.setTimeout;
    const end = () => { if (window.setTimeout === spared) window.setTimeout = begin; };
    const spared = (over, wait, ...more) => {
      end();
      if (wait !== interval) return begin(over, wait, ...more);
      over();
      return 0;
    };
    window.setTimeout = spared;
    queueMicrotask(end);
  };

  // A page that connects again gets another way to send.
  Object.defineProperty(page, "sendMessage", {
    configurable: true,
    enumerable: true,
    get: () => message => {
      if (message.type !== "GuiUpdateMessage") return send(message);
      change(message);
      spareViserItsWait();
    },
    set: way => { send = way; },
  });
})();
