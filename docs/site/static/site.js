// "/" goes to the search, as on other sites of documentation; what scrolls sideways can be reached by the keyboard.
document.addEventListener("keydown", (event) => {
  const field = event.target.closest("input, textarea, select, [contenteditable]");
  if (event.key !== "/" || field || event.ctrlKey || event.metaKey || event.altKey) return;
  const search = document.getElementById("tower-query") || document.querySelector(".sidebar-search");
  if (!search) return;
  event.preventDefault();
  search.focus();
});
document.addEventListener("DOMContentLoaded", () => {
  document.querySelectorAll("div.highlight > pre, .table-box").forEach((box) => {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
  });
});
