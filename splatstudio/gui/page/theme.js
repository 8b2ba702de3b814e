// Dark, light, or as the system has it: what this browser chose holds for all pages of the studio, from the first
// paint on. Dark at first, whatever the system says: pictures are judged beside what surrounds them.
(() => {
  const name = "splatstudio-theme", system = matchMedia("(prefers-color-scheme: light)");
  let chosen = null;  // where the browser may keep nothing, until the page is closed
  const recall = () => {
    try { return chosen ?? localStorage.getItem(name) ?? "dark"; } catch { return chosen ?? "dark"; }
  };
  const apply = () => {
    const theme = recall(), light = theme === "light" || theme === "system" && system.matches;
    document.documentElement.dataset.ssTheme = light ? "light" : "dark";
    for (const list of document.querySelectorAll("[data-own=theme]")) list.value = theme;
    dispatchEvent(new Event("splatstudio-theme"));
  };
  addEventListener("input", event => {
    if (event.target.dataset?.own !== "theme") return;
    chosen = event.target.value;
    try { localStorage.setItem(name, chosen); } catch { /* it holds until the page is closed */ }
    apply();
  }, true);
  addEventListener("storage", event => {
    if (event.key !== name) return;
    chosen = null;
    apply();
  });
  addEventListener("DOMContentLoaded", apply);
  system.addEventListener("change", apply);
  apply();
})();
