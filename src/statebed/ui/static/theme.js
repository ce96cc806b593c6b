// Applies the system's colour scheme or the one chosen here. Runs before the page is drawn, to avoid a flash.
(() => {
  "use strict";
  const order = ["auto", "light", "dark"];
  const said = { auto: "system default", light: "light", dark: "dark" };
  const signs = { auto: "◐", light: "☀", dark: "☾" };
  let chosen = "auto";
  try {
    chosen = localStorage.getItem("statebed-theme") || "auto";
  } catch { /* a browser that keeps nothing */ }
  if (!order.includes(chosen)) chosen = "auto";

  function show() {
    document.documentElement.dataset.theme = chosen;
    const button = document.getElementById("theme");
    if (!button) return;
    button.textContent = signs[chosen];
    button.title = `Colours: ${said[chosen]}`;
    button.setAttribute("aria-label", button.title);
  }

  show();
  document.addEventListener("DOMContentLoaded", () => {
    show();
    document.getElementById("theme").addEventListener("click", () => {
      chosen = order[(order.indexOf(chosen) + 1) % order.length];
      try {
        localStorage.setItem("statebed-theme", chosen);
      } catch { /* then until the page is left */ }
      show();
    });
  });
})();
