// viser's search of commands offers something for any word: what has nothing of the words is taken out of its list.
// A page that connects again gets this once more, and keeps what it has.
(() => {
  if (window.splatstudioCommands) return;
  window.splatstudioCommands = true;

  const plain = text => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  // A word stands in the text, but for one letter where it is long; or it goes on after a word of the text.
  const has = (text, word) => {
    if (text.includes(word)) return true;
    if (word.length < 4) return false;
    if (text.split(/\W+/).some(each => each.length >= 4 && word.startsWith(each))) return true;
    return [...word].some((_, at) =>
      new RegExp(`${plain(word.slice(0, at))}.{0,2}${plain(word.slice(at + 1))}`).test(text));
  };

  const sift = () => {
    const search = document.querySelector(".mantine-Spotlight-content input");
    const list = document.querySelector(".mantine-Spotlight-actionsList");
    if (!search || !list) return;
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const actions = [...list.querySelectorAll(".mantine-Spotlight-action")];
    const fit = actions.filter(action => words.every(word => has(action.textContent.toLowerCase(), word)));
    for (const action of actions) {
      const fits = fit.includes(action);
      action.style.display = fits ? "" : "none";
      // By this the list finds what the arrows go through.
      if (fits !== action.hasAttribute("data-action")) action.toggleAttribute("data-action", fits);
      if (!fits) action.removeAttribute("data-selected");
    }
    if (fit.length && !list.querySelector("[data-selected]")) fit[0].setAttribute("data-selected", "true");
    const none = String(actions.length > 0 && !fit.length);
    if (list.dataset.ssNone !== none) list.dataset.ssNone = none;
  };
  new MutationObserver(() => { if (document.querySelector(".mantine-Spotlight-content")) sift(); })
    .observe(document.body, {childList: true, subtree: true, characterData: true});
})();
