// Light or dark, before anything is painted: as the system says, unless the reader chose.
"use strict";
(() => {
  const chosen = () => {
    try {
      return localStorage.getItem("headrace-theme");
    } catch {
      return null;
    }
  };
  const show = (theme) => {
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
  };
  show(chosen());
  const system = matchMedia("(prefers-color-scheme: dark)");
  window.headraceTheme = {
    dark: () => (document.documentElement.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark",
    toggle() {
      const theme = this.dark() ? "light" : "dark";
      show(theme);
      try {
        localStorage.setItem("headrace-theme", theme);
      } catch {
        // not kept, then
      }
    },
    changed: (act) => system.addEventListener("change", act),
  };
})();
