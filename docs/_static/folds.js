// Unfolds the description of the method that a link leads to, and everything for a printer or if the reader asks.
document.addEventListener("DOMContentLoaded", () => {
  const folds = [...document.querySelectorAll("details.member")];
  if (!folds.length) return;

  const unfoldTarget = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const fold = target?.parentElement.querySelector(":scope > dd > details.member");
    if (fold) fold.open = true;
  };
  const button = document.createElement("button");
  button.className = "unfold";
  button.textContent = "Unfold all";
  button.addEventListener("click", () => {
    const open = button.textContent === "Unfold all";
    for (const fold of folds) fold.open = open;
    button.textContent = open ? "Fold all" : "Unfold all";
  });
  document.getElementById("description")?.before(button);
  addEventListener("hashchange", unfoldTarget);
  addEventListener("beforeprint", () => folds.forEach((fold) => (fold.open = true)));
  unfoldTarget();
});
