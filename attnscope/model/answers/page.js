// The page of an answer. A row belongs to a word of the answer; a key is a position of what it reads: a
// word of the prompt or of the answer, or a patch of a picture. Text is always set as text.

const by = (id) => document.getElementById(id);
by("still").remove(); // it stands in for all of this where no script runs
const data = JSON.parse(by("data").textContent);
const page = {
  row: null, // in the address: row, key, layer, sinks; null: the mean over all rows
  key: null,
  layer: 0, // the place in data.layers; the first is all layers, pooled
  sinks: false, // whether colours include them
  scale: "linear", // not in the address
  opacity: 85,
  part: "all",
  grey: true,
  theme: null,
};
const n = { row: data.words.length, key: data.tokens.length };
const RASTER = 384; // the most cells of a density along a side
const [WIDEST, TALLEST] = [46, 40]; // of a picture, in rem
const MOST = 8; // the most rows of a list
const LARGEST_TEXT = 1500; // tokens; of longer prompts, only some segments are open at first
const DEEPEST = 50; // per cent of the colour behind a word
const VEIL = [248, 107, 0];
const hasAddress = location.protocol !== "about:"; // not in the frame of a notebook
const sinks = new Set(data.sinks);
const special = new Set(data.special);
const patchAt = new Map(); // position of a key → [picture, index of the patch]
data.pictures.forEach((picture, p) => picture.positions.forEach((key, i) => patchAt.set(key, [p, i])));
const segmentAt = new Int16Array(n.key).fill(-1);
data.segments.forEach(({ spans }, s) => spans.forEach(([from, to]) => segmentAt.fill(s, from, to)));

let weights = null; // of the layer that is shown
let latestTurn = 0;
const unpacked = new Recent(4);

/** Creates an element with attributes, and children that are elements or text. */
function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// ---- numbers

function percent(share) {
  const number = 100 * share;
  if (number > 0 && number < 0.05) return "< 0.1 %";
  return `${number.toFixed(1)} %`;
}

/** Returns the weights of the row that is shown, or the mean over all rows, by key. */
function rowNow() {
  const values = new Float64Array(n.key);
  for (let key = 0; key < n.key; key++) {
    if (page.row !== null) values[key] = weights.at(page.row, key);
    else for (let row = 0; row < n.row; row++) values[key] += weights.at(row, key) / n.row;
  }
  return values;
}

/** Returns the sums of some weights over segments. */
function sumsOf(values) {
  const sums = new Float64Array(data.segments.length);
  for (let key = 0; key < n.key; key++) if (segmentAt[key] >= 0) sums[segmentAt[key]] += values[key];
  return sums;
}

const countOf = ({ spans }) => spans.reduce((sum, [from, to]) => sum + to - from, 0);
const isLeftOut = (key) => !page.sinks && sinks.has(key);
const isShownPart = (picture, i) => page.part === "all" || kindOf(picture.parts[picture.partOf[i]]) === page.part;
const kindOf = (part) => (part === "whole" ? "whole" : "tiles");

/**
 * Spreads the weight of each patch evenly over its box; the densities of overlapping patches add.
 *
 * Returns the mean density in each of height × width cells, in weights per area of the picture.
 */
function densityOf(picture, values, height, width) {
  const cells = new Float64Array(height * width);
  picture.boxes.forEach(([left, top, right, bottom], i) => {
    const key = picture.positions[i];
    if (isLeftOut(key) || !isShownPart(picture, i) || !values[key]) return;
    const area = ((right - left) * (bottom - top)) / (picture.width * picture.height);
    const [x0, x1] = [(left * width) / picture.width, (right * width) / picture.width];
    const [y0, y1] = [(top * height) / picture.height, (bottom * height) / picture.height];
    for (let y = Math.floor(y0); y < Math.min(height, Math.ceil(y1)); y++) {
      const down = Math.min(y1, y + 1) - Math.max(y0, y);
      for (let x = Math.floor(x0); x < Math.min(width, Math.ceil(x1)); x++) {
        const across = Math.min(x1, x + 1) - Math.max(x0, x);
        cells[y * width + x] += (values[key] / area) * down * across;
      }
    }
  });
  return cells;
}

function rasterSize({ width, height }) {
  const scale = RASTER / Math.max(width, height);
  return [Math.max(1, Math.round(height * scale)), Math.max(1, Math.round(width * scale))];
}

const strengthOf = (share) => (page.scale === "root" ? Math.sqrt(share) : share);

// ---- names

const nameOf = (text) => text.trim() || text;
const gapBefore = (text) => (text.startsWith(" ") ? " " : ""); // where lines may break
const wordName = (row) => `${nameOf(data.words[row])} ${data.first + row}`;

function keyName(key) {
  const found = patchAt.get(key);
  if (!found || data.recording) return data.recording ? data.tokens[key] : `${nameOf(data.tokens[key])} ${key}`;
  const picture = data.pictures[found[0]];
  const [left, top, right, bottom] = picture.boxes[found[1]].map(Math.round);
  const names = [`x ${left}–${right}, y ${top}–${bottom}`];
  if (picture.parts.length > 1) names.push(picture.parts[picture.partOf[found[1]]]);
  if (data.pictures.length > 1) names.unshift(picture.name);
  return names.join(" · ");
}

const rowName = () => (page.row === null ? (n.row === 1 ? wordName(0) : "all words, on average") : wordName(page.row));

// ---- the words of the answer

function buildWords() {
  data.words.forEach((text, row) => {
    const log = data.logs ? `, log p ${data.logs[row].toFixed(2)}` : "";
    const word = element("span", {
      role: "option",
      id: `word-${row}`,
      class: "word generated",
      title: `${data.first + row}: the row of query ${data.queries[row]}${log}`,
    }, nameOf(text));
    word.addEventListener("click", () => go({ row: row === page.row ? null : row }));
    by("words").append(gapBefore(text), word);
    if (text === "⏎") by("words").append(element("br", {}));
  });
}

function showWords() {
  const reads = page.key === null ? null : data.words.map((_, row) => weights.at(row, page.key));
  const top = reads ? Math.max(...reads) || 1 : 1;
  data.words.forEach((_, row) => {
    const word = by(`word-${row}`);
    word.setAttribute("aria-selected", String(row === page.row));
    word.classList.toggle("at", row === page.row);
    word.style.setProperty("--w", reads ? ((DEEPEST * reads[row]) / top).toFixed(1) : "0");
  });
  by("words").setAttribute("aria-activedescendant", page.row === null ? "" : `word-${page.row}`);
  by("all").setAttribute("aria-pressed", String(page.row === null));
  if (page.row !== null) by(`word-${page.row}`).scrollIntoView({ block: "nearest" });
}

function onWordsKey(event) {
  const at = page.row ?? -1;
  const to = { ArrowLeft: at - 1, ArrowUp: at - 1, ArrowRight: at + 1, ArrowDown: at + 1, Home: 0, End: n.row - 1 }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  goToWord(to);
}

function goToWord(row) {
  const to = Math.min(n.row - 1, Math.max(0, row));
  go({ row: to }, { replace: true }).then(() => say(`${wordName(to)}: ${pictureText() || strongestText()}`));
}

function pictureText() {
  if (!data.pictures.length) return "";
  return data.pictures.map((picture, p) => `${picture.name} ${percent(shareOf(picture))}`).join(", ");
}

const strongestText = () => strongestKeys(1).map(([key, weight]) => `reads ${keyName(key)} most, ${percent(weight)}`).join("");
const shareOf = (picture) => picture.positions.reduce((sum, key) => sum + shown.values[key], 0);

// ---- pictures

let shown = { values: null, top: 1 };
const panels = [];

function buildPictures() {
  if (!data.pictures.length) return;
  by("pictures").classList.toggle("many", data.pictures.length > 4);
  const kinds = new Set(data.pictures.flatMap(({ parts }) => parts.map(kindOf)));
  if (kinds.size > 1) {
    for (const value of ["all", "tiles", "whole"]) {
      const input = element("input", { type: "radio", name: "part", value, autocomplete: "off" });
      by("parts").append(element("label", {}, input, element("span", {}, value === "all" ? "all parts" : value)));
    }
    by("parts").hidden = false;
  }
  data.pictures.forEach((picture, p) => {
    const image = element("img", { src: picture.url, alt: picture.name, draggable: "false", width: picture.width, height: picture.height });
    const canvas = element("canvas", { "aria-hidden": "true" });
    const frame = element("div", {
      class: "picture", tabindex: "0", role: "application",
      "aria-label": `${picture.name}: ${picture.positions.length} patches; arrows lead from patch to patch`,
    }, image, canvas);
    const [name, share, facts] = [element("b", {}), element("span", {}), element("span", {})];
    name.textContent = picture.name;
    const size = data.recording ? `${data.recording.seconds.toFixed(2)} s` : `${picture.width} × ${picture.height} px`;
    facts.textContent = ` · ${size}, ${picture.positions.length} ${data.recording ? "frames" : "patches"}`;
    const below = data.recording ? [axisOfSeconds()] : [];
    const figure = element("figure", {}, frame, ...below, element("figcaption", {}, name, " ", share, facts));
    if (!data.recording) figure.style.maxWidth = `${Math.min(WIDEST, (TALLEST * picture.width) / picture.height).toFixed(2)}rem`;
    by("pictures").append(figure);
    panels.push({ picture, frame, canvas, share });
    const scrub = (event) => {
      const key = event.buttons & 1 ? patchUnder(picture, frame, event) : null;
      if (key !== null && key !== page.key) go({ key }, { replace: true });
    };
    if (data.recording) for (const type of ["pointerdown", "pointermove"]) frame.addEventListener(type, scrub);
    else frame.addEventListener("click", (event) => {
      const key = patchUnder(picture, frame, event);
      go({ key: key === page.key ? null : key });
    });
    frame.addEventListener("pointermove", (event) => showTip(patchUnder(picture, frame, event), event));
    frame.addEventListener("pointerleave", hideTip);
    frame.addEventListener("keydown", (event) => onPictureKey(event, picture, p));
    new ResizeObserver(() => weights && paintPicture(panels[p])).observe(frame);
  });
}

/** Returns the seconds of a recording, each below its place. */
function axisOfSeconds() {
  const marks = data.recording.ticks.map((second) => {
    const mark = element("span", {}, `${second} s`);
    mark.style.left = `${(100 * second) / data.recording.seconds}%`;
    return mark;
  });
  return element("div", { class: "seconds", "aria-hidden": "true" }, ...marks);
}

/** Returns the key of the smallest visible patch under the pointer, or null. */
function patchUnder(picture, frame, event) {
  const box = frame.getBoundingClientRect();
  const x = ((event.clientX - box.left) / box.width) * picture.width;
  const y = ((event.clientY - box.top) / box.height) * picture.height;
  let [best, least] = [null, Infinity];
  picture.boxes.forEach(([left, top, right, bottom], i) => {
    const area = (right - left) * (bottom - top);
    if (isShownPart(picture, i) && left <= x && x < right && top <= y && y < bottom && area < least) {
      [best, least] = [picture.positions[i], area];
    }
  });
  return best;
}

function onPictureKey(event, picture, p) {
  const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
  if (!step) return;
  event.preventDefault();
  const found = patchAt.get(page.key);
  const key = found?.[0] === p ? nextPatch(picture, found[1], step) : strongestPatch(picture);
  if (key !== null) go({ key }, { replace: true }).then(() => say(`${keyName(key)}: ${readersText()}`));
}

/** Returns the nearest patch in a direction, of the same part; or the same one, at the border. */
function nextPatch(picture, from, [dx, dy]) {
  const middle = ([left, top, right, bottom]) => [(left + right) / 2, (top + bottom) / 2];
  const [x, y] = middle(picture.boxes[from]);
  let [best, least] = [picture.positions[from], Infinity];
  picture.boxes.forEach((box, i) => {
    if (picture.partOf[i] !== picture.partOf[from] && picture.parts[picture.partOf[from]] === "whole") return;
    if (kindOf(picture.parts[picture.partOf[i]]) !== kindOf(picture.parts[picture.partOf[from]])) return;
    const [ox, oy] = middle(box);
    const along = (ox - x) * dx + (oy - y) * dy;
    const aside = Math.abs((ox - x) * dy) + Math.abs((oy - y) * dx);
    const far = along + 4 * aside;
    if (along > 1e-6 && aside <= along && far < least) [best, least] = [picture.positions[i], far];
  });
  return best;
}

function strongestPatch(picture) {
  let best = null;
  picture.positions.forEach((key, i) => {
    if (!isLeftOut(key) && isShownPart(picture, i) && (best === null || shown.values[key] > shown.values[best])) best = key;
  });
  return best;
}

function showPictures() {
  if (!panels.length) return;
  for (const panel of panels) {
    panel.size = rasterSize(panel.picture);
    panel.cells = densityOf(panel.picture, shown.values, ...panel.size);
    panel.share.textContent = `${percent(shareOf(panel.picture))} of the weight`;
    panel.frame.classList.toggle("grey", page.grey);
  }
  shown.top = Math.max(...panels.map(({ cells }) => cells.reduce((most, cell) => Math.max(most, cell), 0))) || 1;
  by("look-heading").textContent = `Where it looks: ${rowName()}`;
  by("top").textContent = `${shown.top.toPrecision(3)} % of the weight per 1 % of the ${data.recording ? "recording" : "picture"}`;
  panels.forEach(paintPicture);
  const ramp = by("ramp").getContext("2d");
  ramp.clearRect(0, 0, 256, 1);
  for (let x = 0; x < 256; x++) {
    ramp.fillStyle = `rgb(${VEIL.join(" ")} / ${(strengthOf(x / 255) * page.opacity) / 100})`;
    ramp.fillRect(x, 0, 1, 1);
  }
}

function paintPicture({ picture, frame, canvas, size, cells }) {
  if (!cells) return;
  const [height, width] = size;
  const image = new ImageData(width, height);
  cells.forEach((cell, i) => {
    const strength = strengthOf(Math.min(1, cell / shown.top));
    image.data.set([...VEIL, Math.round((255 * strength * page.opacity) / 100)], 4 * i);
  });
  const small = document.createElement("canvas");
  [small.width, small.height] = [width, height];
  small.getContext("2d").putImageData(image, 0, 0);
  canvas.width = Math.max(1, Math.round(frame.clientWidth * devicePixelRatio));
  canvas.height = Math.max(1, Math.round(frame.clientHeight * devicePixelRatio));
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = canvas.width < width;
  context.drawImage(small, 0, 0, canvas.width, canvas.height);
  const place = ([left, top, right, bottom]) => {
    const [x, y] = [(left / picture.width) * canvas.width, (top / picture.height) * canvas.height];
    return [x, y, (right / picture.width) * canvas.width - x, (bottom / picture.height) * canvas.height - y];
  };
  picture.positions.forEach((key, i) => {
    if (isLeftOut(key) && isShownPart(picture, i)) hatch(context, place(picture.boxes[i]));
  });
  const found = patchAt.get(page.key);
  if (found && data.pictures[found[0]] === picture) {
    const box = place(picture.boxes[found[1]]);
    const line = 2.5 * devicePixelRatio;
    for (const [colour, wide] of [["white", 2 * line], ["#d95400", line]]) {
      context.strokeStyle = colour;
      context.lineWidth = wide;
      context.strokeRect(...box);
    }
  }
}

/** Hatches a patch that is left out of the colours. */
function hatch(context, [x, y, width, height]) {
  context.save();
  context.beginPath();
  context.rect(x, y, width, height);
  context.clip();
  context.fillStyle = "rgb(255 255 255 / 0.75)";
  context.fillRect(x, y, width, height);
  context.strokeStyle = "rgb(60 60 60)";
  context.lineWidth = devicePixelRatio;
  context.beginPath();
  for (let at = -height; at < width; at += 5 * devicePixelRatio) {
    context.moveTo(x + at, y + height);
    context.lineTo(x + at + height, y);
  }
  context.stroke();
  context.restore();
}

// ---- the prompt

const wordOf = new Map(); // key → its element, once its segment is open
const chips = [];

/** Returns runs of neighbouring keys of one segment, in the order of the text. */
function runs() {
  const found = [];
  for (let key = 0; key < n.key; key++) {
    const last = found.at(-1);
    if (last && last.segment === segmentAt[key]) last.to = key + 1;
    else found.push({ segment: segmentAt[key], from: key, to: key + 1 });
  }
  return found;
}

function buildPrompt() {
  const all = runs();
  const isLong = n.key - patchAt.size > LARGEST_TEXT;
  const sums = sumsOf(shown.values);
  const most = [...sums.keys()].sort((a, b) => sums[b] - sums[a]).slice(0, 3);
  for (const run of all) {
    const segment = data.segments[run.segment] ?? { name: "", colour: "transparent" };
    const swatch = element("span", { class: "swatch", "aria-hidden": "true" });
    swatch.style.backgroundColor = segment.colour;
    const [name, share] = [element("span", { class: "name" }), element("span", { class: "share" })];
    name.textContent = segment.name;
    const text = element("div", { class: "text", role: "listbox", tabindex: "0" });
    text.setAttribute("aria-label", segment.name || "other");
    const details = element("details", {}, element("summary", {}, swatch, name, share), text);
    const fill = () => {
      if (!details.open || text.childElementCount) return;
      fillRun(run, text);
      if (weights) shadeWords(run);
    };
    details.addEventListener("toggle", fill);
    text.addEventListener("click", ({ target }) => target.dataset.key && go({ key: Number(target.dataset.key) === page.key ? null : Number(target.dataset.key) }));
    text.addEventListener("pointermove", (event) => showTip(event.target.dataset.key === undefined ? null : Number(event.target.dataset.key), event));
    text.addEventListener("pointerleave", hideTip);
    text.addEventListener("keydown", (event) => onTextKey(event, run));
    Object.assign(run, { share, details });
    details.open = !isLong || run.to - run.from < 200 || most.includes(run.segment);
    by("segments").append(details);
    fill();
  }
  buildPrompt.runs = all;
}

/** Writes the words of a run; the patches of a picture, with what stands between them, are one chip. */
function fillRun({ from, to }, text) {
  if (data.recording && !patchAt.has(from)) { // padding, of which no frame has a name
    text.append(element("span", { class: "chip" }, `${to - from} frames`));
    return;
  }
  for (let key = from; key < to; key++) {
    if (patchAt.has(key)) {
      const start = key;
      const p = patchAt.get(key)[0];
      for (let next = key; next < to; next++) if (patchAt.get(next)?.[0] === p) key = next; // row breaks are inside
      const chip = element("span", { class: "chip" });
      chips.push({ chip, from: start, to: key + 1, picture: data.pictures[p] });
      text.append(chip);
      continue;
    }
    const token = data.tokens[key];
    const kinds = ["word", special.has(key) && "special"];
    const isWritten = data.generatedFrom !== null && key >= data.generatedFrom;
    const word = element("span", { class: [...kinds, isWritten && "generated"].filter(Boolean).join(" "), role: "option", id: `key-${key}`, "data-key": key }, nameOf(token));
    wordOf.set(key, word);
    text.append(gapBefore(token), word);
    if (token === "⏎") text.append(element("br", {}));
  }
}

function onTextKey(event, run) {
  const step = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
  if (!step) return;
  event.preventDefault();
  const inside = page.key !== null && page.key >= run.from && page.key < run.to;
  let key = inside ? page.key + step : step > 0 ? run.from : run.to - 1;
  while (patchAt.has(key) && key >= run.from && key < run.to) key += step;
  if (key < run.from || key >= run.to) return;
  go({ key }, { replace: true }).then(() => say(`${keyName(key)}: ${readersText()}`));
}

function showPrompt() {
  by("prompt-heading").textContent = `What it reads: ${rowName()}`;
  const texts = [...shown.values.keys()].filter((key) => !patchAt.has(key) && !isLeftOut(key));
  shown.topOfText = texts.reduce((most, key) => Math.max(most, shown.values[key]), 0) || 1;
  for (const run of buildPrompt.runs) {
    let sum = 0;
    for (let key = run.from; key < run.to; key++) sum += shown.values[key];
    run.share.textContent = percent(sum);
  }
  for (const { chip, from, to, picture } of chips) {
    const [sums, counts] = [[0, 0], [0, 0]]; // of patches, and of what stands between them
    for (let key = from; key < to; key++) {
      const kind = patchAt.has(key) ? 0 : 1;
      sums[kind] += shown.values[key];
      counts[kind]++;
    }
    const between = counts[1] ? ` · ${counts[1]} ${counts[1] === 1 ? "token" : "tokens"} between them ${percent(sums[1])}` : "";
    chip.textContent = `▦ ${picture.name}: ${counts[0]} ${data.recording ? "frames" : counts[0] === 1 ? "patch" : "patches"} ${percent(sums[0])}${between}`;
  }
  for (const run of buildPrompt.runs) shadeWords(run);
}

function shadeWords({ from, to }) {
  for (let key = from; key < to; key++) {
    const word = wordOf.get(key);
    if (!word) continue;
    const share = Math.min(1, shown.values[key] / (shown.topOfText ?? 1));
    word.style.setProperty("--w", isLeftOut(key) ? "0" : (DEEPEST * share).toFixed(1));
    word.classList.toggle("sink", isLeftOut(key));
    word.setAttribute("aria-selected", String(key === page.key));
  }
}

// ---- lists and sums

function strongestKeys(most) {
  const kept = [...shown.values.keys()].filter((key) => shown.values[key] > 0 && !isLeftOut(key));
  return kept.sort((a, b) => shown.values[b] - shown.values[a]).slice(0, most).map((key) => [key, shown.values[key]]);
}

function readers(most) {
  const rows = data.words.map((_, row) => [row, weights.at(row, page.key)]).filter(([, weight]) => weight > 0);
  return rows.sort((a, b) => b[1] - a[1]).slice(0, most);
}

function readersText() {
  const [first] = readers(1);
  return first ? `read most by ${wordName(first[0])}, ${percent(first[1])}` : "no word reads it";
}

function showDetail() {
  const ofKey = page.key !== null;
  by("detail-heading").textContent = ofKey ? `Which words read ${keyName(page.key)}` : `What is read most: ${rowName()}`;
  by("let-go").hidden = !ofKey;
  by("detail-note").textContent = ofKey && sinks.has(page.key) ? "This key is a sink: it is left out of the colours." : "";
  by("strongest-name").textContent = ofKey ? "word" : "key";
  const found = ofKey ? readers(MOST) : strongestKeys(MOST);
  const top = found.length ? found[0][1] : 1;
  const rows = found.map(([index, weight]) => {
    const button = element("button", { type: "button" });
    button.textContent = ofKey ? wordName(index) : keyName(index);
    button.addEventListener("click", () => go(ofKey ? { row: index } : { key: index }));
    const bar = element("span", { class: "share", "aria-hidden": "true" });
    bar.style.width = `${(100 * weight) / top}%`;
    const cell = element("td", {}, weights.text(weight), bar);
    return element("tr", ofKey && index === page.row ? { class: "at" } : {}, element("td", {}, button), cell);
  });
  by("strongest").tBodies[0].replaceChildren(...rows);
}

function showSums() {
  by("sums-heading").textContent = `By segment: ${rowName()}`;
  const sums = sumsOf(shown.values);
  const even = data.segments.map((_, s) =>
    page.row === null ? data.even.reduce((sum, row) => sum + row[s] / n.row, 0) : data.even[page.row][s]);
  const most = Math.max(...sums) || 1;
  const rows = data.segments.map((segment, s) => {
    const swatch = element("span", { class: "swatch", "aria-hidden": "true" });
    swatch.style.backgroundColor = segment.colour;
    const bar = element("i", { "aria-hidden": "true" });
    bar.style.cssText = `width: ${(100 * sums[s]) / most}%; background-color: ${segment.colour}`;
    const ratio = even[s] > 0 ? sums[s] / even[s] : null;
    const text = ratio === null ? "–" : `${ratio < 10 ? ratio.toFixed(2) : ratio.toFixed(0)} ×`;
    return element("tr", {},
      element("th", { scope: "row" }, swatch, ` ${segment.name}`),
      element("td", {}, countOf(segment).toLocaleString("en")),
      element("td", { class: "meter" }, bar),
      element("td", {}, percent(sums[s])),
      element("td", {}, text));
  });
  by("shares").tBodies[0].replaceChildren(...rows);
}

/** Returns a bar that is divided as a row's weight is between segments, and a text that says the same. */
function stackOf(sums) {
  const stack = element("span", { class: "stack" });
  data.segments.forEach((segment, s) => {
    if (sums[s] <= 0) return;
    const part = element("i", { title: `${segment.name} ${percent(sums[s])}` });
    part.style.cssText = `width: ${100 * sums[s]}%; background-color: ${segment.colour}`;
    stack.append(part);
  });
  const read = data.segments.map((_, s) => s).filter((s) => sums[s] >= 0.005);
  return [stack, read.map((s) => `${data.segments[s].name} ${percent(sums[s])}`).join(", ")];
}

/** Returns a strip of a recording under the weights of one word, and the second that it reads most. */
function stripOf(row, top) {
  const [{ positions }] = data.pictures;
  const values = positions.map((key) => weights.at(row, key));
  const strip = element("canvas", { class: "stack", width: positions.length, height: 1, "aria-hidden": "true" });
  const context = strip.getContext("2d");
  values.forEach((value, x) => {
    context.fillStyle = `rgb(${VEIL.join(" ")} / ${strengthOf(value / top)})`;
    context.fillRect(x, 0, 1, 1);
  });
  const said = data.recording.said?.[row];
  const text = said === undefined ? "" : `, said at ${said.toFixed(2)} s`;
  return [strip, `reads ${keyName(positions[values.indexOf(Math.max(...values))])} most${text}`];
}

/** Returns the largest weight of some keys in all rows. */
const mostOf = (keys) => data.words.reduce((most, _, row) => keys.reduce((top, key) => Math.max(top, weights.at(row, key)), most), 0) || 1;

function showBars() {
  if (showBars.of !== weights) {
    showBars.of = weights;
    const top = data.recording ? mostOf(data.pictures[0].positions) : 1;
    const buttons = data.words.map((_, row) => {
      const [stack, text] = data.recording ? stripOf(row, top) : stackOf(sumsOf(weights.values.subarray(row * n.key, (row + 1) * n.key)));
      const name = element("span", { class: "label" }, element("span", { class: "index" }, `${data.first + row} `), nameOf(data.words[row]));
      const button = element("button", { type: "button", "aria-label": `${wordName(row)}: ${text}` }, name, stack);
      button.addEventListener("click", () => go({ row: row === page.row ? null : row }));
      return button;
    });
    const focused = [...by("bars").children].indexOf(document.activeElement);
    by("bars").replaceChildren(...buttons);
    if (focused >= 0) buttons[focused].focus();
  }
  [...by("bars").children].forEach((button, row) => button.setAttribute("aria-pressed", String(row === page.row)));
}

/** Builds the bars of segments, whose rows are pooled: they do not follow the choice of a layer. */
function buildSegmentBars() {
  data.segmentRows?.forEach((sums, s) => {
    const [stack, text] = stackOf(sums);
    stack.setAttribute("aria-hidden", "true");
    const said = element("span", { class: "unseen" }, `: ${text}`);
    by("segment-bars").append(element("li", {}, element("span", { class: "label" }, data.segments[s].name), stack, said));
  });
}

function showTip(key, event) {
  if (key === null) return hideTip();
  by("tip-key").textContent = keyName(key);
  by("tip-weight").textContent = weights.text(shown.values[key]);
  by("tip").hidden = false;
  const { width, height } = by("tip").getBoundingClientRect();
  const x = Math.min(event.clientX + 14, innerWidth - width - 6);
  const y = event.clientY + 18 + height > innerHeight ? event.clientY - height - 10 : event.clientY + 18;
  by("tip").style.transform = `translate(${Math.max(4, x)}px, ${y}px)`;
}

function hideTip() {
  by("tip").hidden = true;
}

let saying = 0;

/** Announces a text to screen readers once the selection rests. */
function say(text) {
  clearTimeout(saying);
  saying = setTimeout(() => (by("said").textContent = text), 150);
}

// ---- the address, and showing

function addressOf() {
  const parts = new URLSearchParams();
  if (page.row !== null) parts.set("word", data.first + page.row);
  if (page.key !== null) parts.set("key", page.key);
  if (page.layer) parts.set("layer", data.layers[page.layer]);
  if (page.sinks) parts.set("sinks", "on");
  return `#${parts}`;
}

function readAddress() {
  const parts = new URLSearchParams(location.hash.slice(1));
  const number = (name, end) => {
    const text = parts.get(name) ?? "";
    return /^\d{1,9}$/.test(text) && Number(text) < end ? Number(text) : null;
  };
  const word = number("word", data.first + n.row);
  page.row = word === null || word < data.first ? null : word - data.first;
  if (!location.hash) page.row = data.row;
  page.key = number("key", n.key);
  page.layer = Math.max(0, data.layers.indexOf(number("layer", Infinity)));
  page.sinks = parts.get("sinks") === "on";
}

/** Changes what is shown; with `replace`, for arrow keys, without a new entry of the history. */
function go(changes, { replace = false } = {}) {
  Object.assign(page, changes);
  const address = addressOf();
  if (hasAddress && address !== (location.hash || "#")) {
    if (replace) location.replace(address);
    else location.hash = address;
  }
  return show();
}

async function show() {
  const turn = ++latestTurn;
  const { layer } = page;
  try {
    const found = await unpacked.get(layer, () =>
      unpack(by(`weights-${layer}`).textContent, n.row, n.key, data.coding[layer ? 1 : 0], null));
    if (turn !== latestTurn) return;
    weights = found;
  } catch (error) {
    by("failure").textContent = `This browser cannot decompress the weights: ${error.message}`;
    by("failure").hidden = false;
    return;
  }
  shown.values = rowNow();
  if (!buildPrompt.runs) buildPrompt(), buildSegmentBars();
  hideTip();
  showControls();
  showWords();
  showPictures();
  showPrompt();
  showDetail();
  showSums();
  showBars();
  document.body.dataset.shown = [page.row ?? "all", page.key ?? "none", data.layers[layer] ?? "pooled"].join(" ");
}

function showControls() {
  by("layer").value = String(page.layer);
  by("sinks").checked = page.sinks;
  if (!data.pictures.length) return;
  by("opacity").value = String(page.opacity);
  by("grey").checked = page.grey;
  for (const input of document.querySelectorAll("input[name=scale]")) input.checked = input.value === page.scale;
  for (const input of document.querySelectorAll("input[name=part]")) input.checked = input.value === page.part;
}

const isDark = () => (page.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";

function setTheme(theme) {
  page.theme = theme;
  document.documentElement.dataset.theme = theme;
}

const toggleTheme = () => setTheme(isDark() ? "light" : "dark");

function clearSelection() {
  if (page.key !== null) go({ key: null });
  else if (page.row !== null) go({ row: null });
}

/** Handles character keys, only if words, pictures or nothing has the focus (WCAG 2.2, 2.1.4). */
function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || by("help").open) return;
  if (event.key !== "Escape" && !event.target.closest("#words, .picture, #segments, .bars") && event.target !== document.body) return;
  const does = {
    "?": () => by("help").showModal(),
    t: toggleTheme,
    s: () => data.sinks.length && go({ sinks: !page.sinks }).then(() => say(page.sinks ? "with sinks" : "without sinks")),
    "[": () => goToWord((page.row ?? n.row) - 1),
    "]": () => goToWord((page.row ?? -1) + 1),
    Escape: clearSelection,
  };
  if (!does[event.key]) return;
  event.preventDefault();
  does[event.key]();
}

function onInput({ target }) {
  if (target.id === "layer") go({ layer: Number(target.value) });
  else if (target.id === "sinks") go({ sinks: target.checked });
  else if (target.id === "opacity") Object.assign(page, { opacity: Number(target.value) }) && showPictures();
  else if (target.id === "grey") Object.assign(page, { grey: target.checked }) && showPictures();
  else if (target.name === "scale" || target.name === "part") Object.assign(page, { [target.name]: target.value }) && showPictures();
}

function listen() {
  addEventListener("hashchange", () => {
    if (location.hash === addressOf()) return;
    readAddress();
    show();
  });
  addEventListener("keydown", onKey);
  addEventListener("input", onInput);
  if (!hasAddress) {
    addEventListener("message", ({ source, data: theme }) => {
      if (source === parent && (theme === "light" || theme === "dark")) setTheme(theme);
    });
  }
  by("words").addEventListener("keydown", onWordsKey);
  by("all").addEventListener("click", () => go({ row: null }));
  by("let-go").addEventListener("click", () => go({ key: null }));
  by("theme").addEventListener("click", toggleTheme);
  by("help-button").addEventListener("click", () => by("help").showModal());
  by("help-close").addEventListener("click", () => by("help").close());
  by("help-address").hidden = !hasAddress;
}

data.layers.forEach((layer, i) => by("layer").append(element("option", { value: i }, layer === null ? "all, pooled" : `layer ${layer}`)));
by("layer-choice").hidden = data.layers.length < 2;
by("sink-choice").hidden = !data.sinks.length;
buildWords();
buildPictures();
readAddress();
listen();
show();
