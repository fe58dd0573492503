// The chosen theme, or none: then the system's holds. Not a module, since those wait for the page to be read.

(() => {
  try {
    const chosen = localStorage.getItem("postbox.theme");
    if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
  } catch {
    // A browser that keeps nothing for pages: the system's theme is good.
  }
})();
