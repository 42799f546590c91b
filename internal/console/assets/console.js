// Chooses all rows at once, and refreshes the parts of a page that are marked for it. Without scripts the page is as
// useful: reload it.
"use strict";
for (const all of document.querySelectorAll("input[data-all]")) {
  all.hidden = false;
  all.addEventListener("change", () => {
    for (const one of all.closest("table").querySelectorAll("tbody input[type=checkbox]")) one.checked = all.checked;
  });
}
(() => {
  const every = 10000;
  const parts = () => document.querySelectorAll("[data-refresh]");
  if (parts().length === 0) return;
  const busy = (part) => part.contains(document.activeElement) ||
    (getSelection() !== null && !getSelection().isCollapsed && part.contains(getSelection().anchorNode));
  const refresh = async () => {
    if (document.hidden) return;
    const answer = await fetch(location.pathname + location.search, { headers: { Accept: "text/html" } }).catch(() => null);
    if (answer === null || !answer.ok) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const part of parts()) {
      const other = fresh.getElementById(part.id);
      if (other !== null && !busy(part) && other.innerHTML !== part.innerHTML) part.replaceChildren(...other.childNodes);
    }
    const time = fresh.querySelector("footer time");
    if (time !== null) document.querySelector("footer time").replaceWith(time);
  };
  setInterval(refresh, every);
  document.addEventListener("visibilitychange", refresh);
})();
