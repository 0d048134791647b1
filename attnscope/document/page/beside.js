// Small maps of the current head in every stack, side by side. Only pages of two models or texts contain
// this file.

/** Shows the current head's small maps; a click goes to the stack. */
async function showBeside() {
  const turn = latestTurn;
  const figures = data.stacks.map((stack, i) => {
    const each = headIn(stack, page.layer, page.head);
    if (!each || !hasMap(each)) return null;
    const canvas = element("canvas", { "aria-hidden": "true" });
    const button = element("button", { type: "button", "aria-pressed": String(i === page.stack) }, canvas, stack.name);
    button.addEventListener("click", () => go({ stack: i }));
    return { stack, each, canvas, button };
  });
  const shown = figures.filter((figure) => figure);
  await Promise.all(shown.map(({ stack, each }) => withBytes(stack, each)));
  if (turn !== latestTurn) return;
  const colours = Uint32Array.from(palette(isDark()), wordOf);
  for (const { each, canvas } of shown) {
    [canvas.width, canvas.height] = [each.small.columns, each.small.rows];
    putSmall(each, canvas, colours);
  }
  const focused = by("beside").contains(document.activeElement);
  by("beside").replaceChildren(...shown.map(({ button }) => button));
  by("beside").hidden = shown.length === 0;
  by("beside").dataset.dark = String(isDark());
  by("beside").dataset.shown = [stackNow().name, page.layer, page.head].join(" ");
  if (focused) by("beside").querySelector('[aria-pressed="true"]')?.focus();
}
