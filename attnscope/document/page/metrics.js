// Metrics of heads: as numbers, as colours of the overview, as a list for one head, as a table for all.
// Only pages with metrics contain this file.

const MAPS = "map"; // the overview shows small maps instead of a metric
const MOST_DECIMALS = 6;
const TINY = 1e-3; // of effects: columns whose largest is below it are written with powers of ten
const DIGIT = 6.2; // the width of a digit in a cell, px
const ROWS = 100; // of the table at first; also the number of rows added at a time

const sorting = { by: -1, down: true }; // by: the index of a metric, or -1 for the order of heads
let rowsShown = ROWS;
let cellPointed = null; // the cell whose value is shown beside it
let listed = {}; // the stack and the metric that the table shows

/** Returns what the overview can show of a stack. */
function choicesOf(stack) {
  const metrics = stack.heads.some((each) => each.values) ? data.metrics.map(({ name }) => name) : [];
  return stack.heads.some(hasMap) ? [MAPS, ...metrics] : metrics;
}

function firstMetric(stack) {
  const choices = choicesOf(stack);
  return choices.includes(data.metric) ? data.metric : (choices.find((name) => name !== MAPS) ?? MAPS);
}

// ---- numbers

/** Returns what ranks a value: the value, or its size where numbers below 0 are as strong. */
const strengthOf = (value) => (data.signed ? Math.abs(value) : value);

/** Returns the largest value of the heads of a stack, or the strongest's size; null if none has a value. */
function largestOf(stack, metric) {
  stack.largest ??= data.metrics.map((_, i) =>
    stack.heads.reduce((most, { values }) => {
      const value = values?.[i] ?? null;
      return value === null ? most : Math.max(most ?? strengthOf(value), strengthOf(value));
    }, null),
  );
  return stack.largest[metric];
}

/** Returns the number of decimals that show this many digits of the largest value of a column. */
function decimalsFor(largest, digits) {
  if (data.signed && !data.powers && largest < TINY) return null; // powers of ten
  const before = largest > 0 ? Math.floor(Math.log10(largest)) : 0;
  return clamp(digits - 1 - before, Math.max(0, digits - 2), MOST_DECIMALS);
}

/** Formats a number; whole and small ones differently where small numbers are not nearly zero. */
function numberText(value, digits) {
  if (data.powers && Number.isInteger(value)) return String(value);
  if (data.powers && Math.abs(value) < 10 ** -digits) return value.toExponential(1);
  if (digits === null) return value === 0 ? "0" : value.toExponential(1);
  return value.toFixed(digits);
}

/** Formats a head's value, and its standard error with two digits, if known. */
function valueOf(stack, each, metric) {
  const value = each.values?.[metric] ?? null;
  const error = each.errors?.[metric] ?? null;
  if (value === null) return "no value";
  if (each.hidden?.[metric]) return `${numberText(value, decimalsFor(largestOf(stack, metric), 4))}: ${data.without}`;
  if (!error) return numberText(value, decimalsFor(largestOf(stack, metric), 4)) + (error === 0 ? " ± 0" : "");
  const digits = clamp(1 - Math.floor(Math.log10(error)), 0, MOST_DECIMALS);
  const least = 10 ** -digits;
  return `${value.toFixed(digits)} ± ${error < least ? `< ${least.toFixed(digits)}` : error.toFixed(digits)}`;
}

// ---- colours in the overview

let longest = 0; // of the texts in the cells, characters

/** Colours cells from 0 to the largest value of the stack, in equal steps; below 0 in another hue. */
function paintValues(stack, metric) {
  const colours = palette(isDark());
  const below = data.signed ? palette(isDark(), BLUE) : colours;
  const largest = largestOf(stack, metric);
  const digits = decimalsFor(largest, 2);
  longest = 0;
  for (const each of stack.heads) {
    const patch = cells.get(placeOf(each)).lastChild;
    const value = each.hidden?.[metric] ? null : (each.values?.[metric] ?? null);
    const share = value === null ? 0 : clamp(strengthOf(value) / (largest || 1), 0, 1);
    const colour = value === null ? null : (value < 0 ? below : colours)[Math.round(255 * share)];
    patch.classList.toggle("none", value === null);
    patch.dataset.value = value === null ? "" : numberText(value, digits); // CSS shows it
    longest = Math.max(longest, patch.dataset.value.length);
    patch.style.background = colour ? cssOf(colour) : "";
    patch.style.color = colour ? contrasting(colour) : "";
  }
  makeRoom();
  const ramp = by("metric-ramp").getContext("2d");
  const image = new ImageData(256, 1);
  const every = colours.filter((_, i) => i % 2).map(wordOf);
  const both = [...below.filter((_, i) => i % 2).map(wordOf).reverse(), ...every];
  new Uint32Array(image.data.buffer).set(data.signed ? both : colours.map(wordOf));
  ramp.putImageData(image, 0, 0);
}

/** Shows the values in the cells, if they fit. */
function makeRoom() {
  const [cell] = cells.values();
  by("heads").classList.toggle("roomy", cell.clientWidth > DIGIT * longest);
}

/** Returns black or white, whichever contrasts more with a colour (WCAG 2.2, relative luminance). */
function contrasting(colour) {
  const light = (byte) => (byte <= 10 ? byte / 3294.6 : ((byte / 255 + 0.055) / 1.055) ** 2.4);
  const [red, green, blue] = colour.map(light);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 ? "#000" : "#fff";
}

// ---- the value beside the cell that the pointer or the focus is on

function showValue(cell) {
  const stack = stackNow();
  const metric = metricNow();
  const each = metric < 0 ? null : stack.heads.find((head) => cells.get(placeOf(head)) === cell);
  if (!each) return hideValue();
  cellPointed = cell;
  by("value-head").textContent = nameOf(stack, each);
  by("value").textContent = valueOf(stack, each, metric);
  by("value-metric").textContent = `${page.metric}: ${data.metrics[metric].meaning}`;
  by("value-tip").hidden = false;
  placeValue();
}

function hideValue() {
  cellPointed = null;
  by("value-tip").hidden = true;
}

/** Places the value below the cell, or above it at the end of the window, within the overview's width. */
function placeValue() {
  if (!cellPointed) return;
  const tip = by("value-tip");
  const [around, box] = [tip.offsetParent.getBoundingClientRect(), cellPointed.getBoundingClientRect()];
  const below = box.bottom + 6;
  const y = below + tip.offsetHeight > innerHeight ? box.top - 6 - tip.offsetHeight : below;
  const x = clamp(box.left - around.left, 0, Math.max(0, around.width - tip.offsetWidth - 2));
  tip.style.transform = `translate(${x}px, ${y - around.top}px)`;
}

// ---- one head

function showMetrics() {
  const stack = stackNow();
  if (listed.stack !== stack || listed.metric !== page.metric) {
    if (listed.stack === stack) paintHeads(); // the cells of another stack are new, and painted already
    Object.assign(sorting, metricNow() < 0 ? {} : { by: metricNow(), down: true });
    listed = { stack, metric: page.metric };
    rowsShown = ROWS;
    hideValue();
    showChoices(stack);
    showTable();
  }
  showList(stack, headNow());
  showRow();
}

function showChoices(stack) {
  const choices = choicesOf(stack);
  const metric = metricNow();
  by("metric").replaceChildren(...choices.map((name) => element("option", { value: name }, name)));
  by("metric").value = page.metric;
  by("metric-choice").hidden = choices.at(-1) === MAPS; // nothing was measured
  by("metric-meaning").textContent = data.metrics[metric]?.meaning ?? "";
  by("maps-note").hidden = metric >= 0;
  const largest = metric < 0 ? null : largestOf(stack, metric);
  by("metric-legend").hidden = largest === null;
  const top = largest === null ? "" : numberText(largest, decimalsFor(largest, 3));
  by("metric-top").textContent = top;
  by("metric-low").textContent = data.signed && top ? `−${top}` : "0";
  const without = metric >= 0 && stack.heads.some((each) => each.hidden?.[metric] || (each.values?.[metric] ?? null) === null);
  by("metric-none").hidden = !without;
  by("none-text").textContent = largest === null ? "no head has a value" : data.without;
}

/** Shows all metrics of one head. */
function showList(stack, each) {
  by("measures-heading").textContent = `${nameOf(stack, each)}: ${data.what}`;
  const rows = data.metrics.map(({ name, meaning }, i) => {
    const value = element("dd", {}, each.values ? valueOf(stack, each, i) : "not measured");
    const row = element("div", {}, element("dt", {}, name), value, element("dd", { class: "note" }, meaning));
    row.classList.toggle("at", name === page.metric);
    return row;
  });
  by("values").replaceChildren(...rows);
  by("measures").dataset.shown = [stack.name, page.layer, page.head, page.metric].join(" ");
}

// ---- the table of all heads

/** Returns the measured heads in the chosen order; in both directions, those without a value come last. */
function sortedHeads(stack) {
  const heads = stack.heads.filter((each) => each.values);
  if (sorting.by < 0) return sorting.down ? heads : heads.reverse();
  const known = heads.filter((each) => each.values[sorting.by] !== null);
  const unknown = heads.filter((each) => each.values[sorting.by] === null);
  const sign = sorting.down ? -1 : 1;
  const strength = (each) => strengthOf(each.values[sorting.by]);
  return [...known.sort((a, b) => sign * (strength(a) - strength(b))), ...unknown];
}

function showTable() {
  const stack = stackNow();
  const heads = sortedHeads(stack);
  const digits = data.metrics.map((_, i) => decimalsFor(largestOf(stack, i), 3));
  by("ranking").hidden = heads.length === 0;
  by("all-values").tBodies[0].replaceChildren(...heads.slice(0, rowsShown).map((each) => tableRow(stack, each, digits)));
  by("more").hidden = heads.length <= rowsShown;
  by("more").textContent = `${Math.min(ROWS, heads.length - rowsShown)} more of ${heads.length - rowsShown}`;
  for (const title of by("all-values").tHead.rows[0].cells) {
    const here = Number(title.dataset.metric) === sorting.by;
    const downwards = sorting.by < 0 ? !sorting.down : sorting.down;
    if (here) title.setAttribute("aria-sort", downwards ? "descending" : "ascending");
    else title.removeAttribute("aria-sort");
  }
}

function tableRow(stack, each, digits) {
  const name = nameOf(stack, each);
  const button = element("button", { type: "button", "aria-label": name, title: name }, `L${each.layer} H${each.head}`);
  button.addEventListener("click", () => {
    goTo(each);
    by(hasMap(each) ? "look" : "measures").scrollIntoView({ block: "nearest" });
  });
  const numbers = each.values.map((value, i) => element("td", {}, value === null ? "–" : numberText(value, digits[i])));
  return element("tr", { "data-place": placeOf(each) }, element("th", { scope: "row" }, button), ...numbers);
}

/** Marks the row of the current head. */
function showRow() {
  for (const row of by("all-values").tBodies[0].rows) row.classList.toggle("at", row.dataset.place === placeOf(page));
}

/** Sorts by a column, the largest first; the second time in reverse. */
function sortBy(metric) {
  sorting.down = sorting.by !== metric || !sorting.down;
  sorting.by = metric;
  rowsShown = ROWS;
  showTable();
  showRow();
}

function listenForMetrics() {
  const heads = by("heads");
  const cellOf = (event) => event.target.closest('[role="gridcell"]');
  heads.addEventListener("pointerover", (event) => showValue(cellOf(event)));
  heads.addEventListener("pointerleave", hideValue);
  heads.addEventListener("focusin", (event) => event.target.matches(":focus-visible") && showValue(cellOf(event)));
  heads.addEventListener("focusout", hideValue);
  addEventListener("keydown", (event) => event.key === "Escape" && hideValue());
  addEventListener("scroll", placeValue, { capture: true, passive: true });
  new ResizeObserver(makeRoom).observe(heads);
  for (const title of by("all-values").tHead.rows[0].cells)
    title.firstElementChild.addEventListener("click", () => sortBy(Number(title.dataset.metric)));
  by("more").addEventListener("click", () => {
    rowsShown += ROWS;
    showTable();
    showRow();
  });
}
