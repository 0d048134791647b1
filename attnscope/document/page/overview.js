// All heads at once: a grid of small maps, or of a metric's values as colours.

const cells = new Map(); // "layer head" → its cell in the overview
const MANY = 32; // columns; if there are more, not every number fits

let cellShown = null; // the cell of the current head
let smallMaps = Promise.resolve(); // resolves when the small maps are painted

/** Returns the index of the metric that the overview shows; -1 if it shows the small maps. */
const metricNow = () => data.metrics.findIndex(({ name }) => name === page.metric);
const placeOf = ({ layer, head }) => `${layer} ${head}`;
const cellNow = () => cells.get(placeOf(page));

function makeHeads(stack) {
  const layers = sorted(stack.heads.map((each) => each.layer));
  const heads = sorted(stack.heads.map((each) => each.head));
  const there = new Map(stack.heads.map((each) => [placeOf(each), each]));
  const dense = measured && heads.length > MANY;
  const number = (name, role, at) => {
    const written = dense && at % 4 ? "" : String(at);
    return element("div", { role, "aria-label": `${name} ${at}`, "data-number": at }, written);
  };
  cells.clear();
  const rows = layers.map((layer) => {
    const row = heads.map((head) => makeCell(stack, there.get(placeOf({ layer, head }))));
    return element("div", { role: "row" }, number("layer", "rowheader", layer), ...row);
  });
  const corner = element("div", { role: "columnheader", "aria-label": "layer" });
  const titles = heads.map((head) => number("head", "columnheader", head));
  if (!stack.ofHeads) for (const title of titles) title.replaceChildren();
  by("heads").replaceChildren(element("div", { role: "row" }, corner, ...titles), ...rows);
  by("heads").style.setProperty("--columns", heads.length);
  by("heads").classList.toggle("dense", dense);
  cellShown = null;
  paintHeads();
  showCue();
}

function makeCell(stack, each) {
  if (!each) return element("div", { role: "gridcell", "aria-disabled": "true", "aria-label": "not in this page" });
  const cell = element("div", { role: "gridcell", tabindex: "-1" });
  if (hasMap(each)) {
    const { rows, columns } = each.small ?? { rows: stack.queries.length, columns: keyTokensOf(stack).length };
    cell.append(element("canvas", { width: columns, height: rows, "aria-hidden": "true" }));
  }
  if (measured) cell.append(element("span", { class: "value", "aria-hidden": "true" }));
  const { layer, head } = each;
  cell.addEventListener("click", () => go({ layer, head }));
  cells.set(placeOf(each), cell);
  return cell;
}

function nameOf(stack, each) {
  if (!stack.ofHeads) return `Layers 0 to ${each.layer}`;
  const name = `Layer ${each.layer}, head ${each.head}`;
  return stack.shared && hasMap(each) ? `${name} · K,V head ${each.kvHead}` : name;
}

/** Returns a head's label in the overview: its name, and the value that its colour shows. */
function labelOf(stack, each) {
  const metric = metricNow();
  return metric < 0 ? nameOf(stack, each) : `${nameOf(stack, each)}: ${page.metric} ${valueOf(stack, each, metric)}`;
}

function paintHeads() {
  const stack = stackNow();
  const metric = metricNow();
  by("heads").classList.toggle("coloured", metric >= 0);
  for (const each of stack.heads) {
    const cell = cells.get(placeOf(each));
    cell.setAttribute("aria-label", labelOf(stack, each));
    if (metric < 0) cell.title = nameOf(stack, each);
    else cell.removeAttribute("title"); // the value beside the cell has more detail
  }
  if (metric < 0) smallMaps = paintMaps(stack);
  else paintValues(stack, metric);
}

/** Returns the small map of a head: the one in the page, or its map, if that is equally small. */
async function smallMapOf(stack, each) {
  if (each.small) return { ...each.small, bytes: bytesOf(each.small.roots) };
  const { values, keyCount } = await weightsOf(stack, each);
  const bytes = Uint8Array.from(values, (weight) => Math.round(255 * Math.sqrt(weight))); // NaN becomes 0
  return { rows: bytes.length / keyCount, columns: keyCount, bytes };
}

async function paintMaps(stack) {
  const heads = stack.heads.filter(hasMap);
  await Promise.all(heads.map((each) => withBytes(stack, each)));
  if (stack !== stackNow() || metricNow() >= 0) return;
  const colours = Uint32Array.from(palette(isDark()), wordOf);
  for (const each of heads) putSmall(each, cells.get(placeOf(each)).firstChild, colours);
}

/** Unpacks the small map of a head. */
async function withBytes(stack, each) {
  if (!each.small?.bytes) each.small = await smallMapOf(stack, each);
}

/** Draws a head's unpacked small map on a canvas of its size. */
function putSmall(each, canvas, colours) {
  const { rows, columns, bytes } = each.small;
  const image = new ImageData(columns, rows);
  const words = new Uint32Array(image.data.buffer);
  for (let i = 0; i < words.length; i++) words[i] = colours[bytes[i]];
  canvas.getContext("2d").putImageData(image, 0, 0);
}

// ---- the visible part of the overview: described in words, and scrolled by buttons

/** Returns the first and the last title that are visible between two edges of the overview. */
function seenOf(titles, start, end) {
  const inside = titles.filter((each) => {
    const box = each.getBoundingClientRect();
    const [from, to] = start === "top" ? [box.top, box.bottom] : [box.left, box.right];
    return from + to > 2 * end[0] && from + to < 2 * end[1];
  });
  return inside.length ? [inside[0], inside.at(-1)].map((each) => Number(each.dataset.number)) : null;
}

function showCue() {
  const heads = by("heads");
  const box = heads.getBoundingClientRect();
  const [down, across] = [heads.scrollHeight - heads.clientHeight, heads.scrollWidth - heads.clientWidth];
  const frame = by("heads-frame").classList;
  frame.toggle("more-above", heads.scrollTop > 1);
  frame.toggle("more-below", heads.scrollTop < down - 1);
  frame.toggle("more-left", heads.scrollLeft > 1);
  frame.toggle("more-right", heads.scrollLeft < across - 1);
  const scrolls = { layer: down > 1, head: across > 1 };
  by("cue").hidden = !scrolls.layer && !scrolls.head;
  const parts = [];
  for (const [name, role, start, from, to] of [
    ["layer", "rowheader", "top", box.top, box.bottom],
    ["head", "columnheader", "left", box.left, box.right],
  ]) {
    if (!scrolls[name]) continue;
    const titles = [...heads.querySelectorAll(`[role="${role}"][data-number]`)];
    const seen = seenOf(titles, start, [from, to]);
    if (seen) parts.push(`${name}s ${seen[0]}–${seen[1]} of ${titles[0].dataset.number}–${titles.at(-1).dataset.number}`);
  }
  by("cue-text").textContent = parts.join(" · ");
  for (const id of ["cue-up", "cue-down"]) by(id).hidden = !scrolls.layer;
  for (const id of ["cue-left", "cue-right"]) by(id).hidden = !scrolls.head;
  by("cue-up").disabled = !frame.contains("more-above");
  by("cue-down").disabled = !frame.contains("more-below");
  by("cue-left").disabled = !frame.contains("more-left");
  by("cue-right").disabled = !frame.contains("more-right");
}

function listenForCue() {
  const heads = by("heads");
  const scrolls = (id, x, y) =>
    by(id).addEventListener("click", () => {
      heads.scrollBy({ left: 0.8 * x * heads.clientWidth, top: 0.8 * y * heads.clientHeight });
      showCue();
      say(by("cue-text").textContent);
    });
  scrolls("cue-left", -1, 0);
  scrolls("cue-right", 1, 0);
  scrolls("cue-up", 0, -1);
  scrolls("cue-down", 0, 1);
  heads.addEventListener("scroll", showCue, { passive: true });
  new ResizeObserver(showCue).observe(heads);
}

function showHead() {
  const name = nameOf(stackNow(), headNow());
  const mapped = hasMap(headNow());
  by("heading").textContent = name;
  by("no-map").hidden = mapped;
  by("look").classList.toggle("empty", !mapped);
  by("detail").hidden = !mapped;
  mark(cellShown, false);
  if (!cellShown) for (const cell of cells.values()) mark(cell, false);
  cellShown = cellNow();
  mark(cellShown, true);
}

function mark(cell, here) {
  if (!cell) return;
  cell.setAttribute("aria-selected", String(here));
  cell.tabIndex = here ? 0 : -1;
}

/** Moves through the overview with the arrow keys: to the next existing head in that direction. */
function neighbour(across, down) {
  const { heads } = stackNow();
  const ahead = heads.filter((each) =>
    across
      ? each.layer === page.layer && Math.sign(each.head - page.head) === across
      : each.head === page.head && Math.sign(each.layer - page.layer) === down,
  );
  return across + down > 0 ? ahead[0] : ahead.at(-1);
}

function goTo(each, options) {
  if (!each) return;
  go({ layer: each.layer, head: each.head }, options);
  say(labelOf(stackNow(), each));
}

function onHeadsKey(event) {
  const { heads } = stackNow();
  const row = heads.filter((each) => each.layer === page.layer);
  const ways = {
    ArrowLeft: () => neighbour(-1, 0),
    ArrowRight: () => neighbour(1, 0),
    ArrowUp: () => neighbour(0, -1),
    ArrowDown: () => neighbour(0, 1),
    Home: () => row[0],
    End: () => row.at(-1),
    Enter: headNow,
  };
  if (!ways[event.key] || event.altKey || event.metaKey) return; // Alt+arrow is the browser's history
  event.preventDefault();
  goTo(ways[event.key](), { replace: true });
}
