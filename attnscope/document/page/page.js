// The state of the page and its navigation. Text is always set as text, so no token can become markup.

const by = (id) => document.getElementById(id);
by("still").remove(); // it stands in for all of this where no script runs
const data = JSON.parse(by("data").textContent);
const measured = data.metrics.length > 0;
const page = {
  stack: 0, // in the address: stack, layer, head, view, metric, query, texts, special, sink
  layer: 0,
  head: 0,
  view: "map",
  metric: null, // what the overview shows: MAPS, or a metric's name
  query: null,
  texts: "all",
  special: true,
  sink: true, // whether lines, colours and the strongest weights include the keys of the sink
  scale: "root", // not in the address: scale, top, zoom, theme
  top: "strongest",
  zoom: 1,
  theme: null,
};
const looks = { map: new MapLook(), lines: new LinesLook(), picture: new PictureLook() };
const VIEWS = Object.keys(looks);
const STRONGEST = 10;
const SINKS = 4; // the number of the sink's keys that are named
const PAGE = 10; // the number of queries that PageDown moves by
const hasAddress = location.protocol !== "about:"; // not in the frame of a notebook, whose history this would fill
const ROOM_FOR_WEIGHTS = 2 ** 24; // the number of unpacked weights that are kept: 64 MiB

let unpacked = new Recent(1);
let scene = null;
let latestTurn = 0; // counts calls of show, so that a slow one does not overwrite a later one

// ---- the content of the page

const stackNow = () => data.stacks[page.stack];
const topOf = (stack) => (stack.unit === null ? "1" : inDigits(stack.unit, 3)); // of the small maps' colours
const keyTokensOf = (stack) => stack.keys ?? stack.queries;
const headIn = (stack, layer, head) => stack.heads.find((each) => each.layer === layer && each.head === head);
const headNow = () => headIn(stackNow(), page.layer, page.head);
const hasMap = (each) => each.weights !== undefined;
const segmentOf = (token) => token.segment ?? 0;
const named = (segment) => "AB"[segment] ?? String(segment + 1);
const sorted = (numbers) => [...new Set(numbers)].sort((a, b) => a - b);

/** Returns the blocks of a pair of texts: the text of the queries, and the text of the keys. */
function blocksOf(stack) {
  const [from, to] = [stack.queries, keyTokensOf(stack)].map((tokens) => sorted(tokens.map(segmentOf)));
  if (from.length * to.length < 2) return [];
  return from.flatMap((query) => to.map((key) => ({ name: `${named(query)}→${named(key)}`, query, key })));
}

/** Returns the indices of the visible queries or keys. */
function shown(tokens, segment) {
  return [...tokens.keys()].filter(
    (i) => (page.special || !tokens[i].special) && (segment === undefined || segmentOf(tokens[i]) === segment),
  );
}

// ---- the address

function addressOf() {
  const parts = new URLSearchParams();
  if (data.stacks.length > 1) parts.set("stack", stackNow().name);
  parts.set("layer", page.layer);
  parts.set("head", page.head);
  if (page.view !== "map") parts.set("view", page.view);
  if (measured && page.metric !== firstMetric(stackNow())) parts.set("metric", page.metric);
  if (page.query !== null) parts.set("query", positionOf(page.query));
  if (page.texts !== "all") parts.set("texts", page.texts);
  if (!page.special) parts.set("special", "off");
  if (!page.sink) parts.set("sink", "off");
  return `#${parts}`;
}

function readAddress() {
  const parts = new URLSearchParams(location.hash.slice(1));
  const number = (name) => (/^\d{1,9}$/.test(parts.get(name) ?? "") ? Number(parts.get(name)) : null);
  const named = data.stacks.findIndex((stack) => stack.name === parts.get("stack"));
  const first = data.stacks.findIndex((stack) => headIn(stack, data.first.layer, data.first.head));
  page.stack = named >= 0 ? named : Math.max(0, first);
  page.layer = number("layer") ?? data.first.layer;
  page.head = number("head") ?? data.first.head;
  page.view = parts.get("view") ?? "map";
  page.metric = parts.get("metric");
  const query = location.hash ? number("query") : data.first.query;
  page.query = query === null ? null : query - stackNow().firstQuery;
  page.texts = parts.get("texts") ?? "all";
  page.special = parts.get("special") !== "off";
  page.sink = location.hash ? parts.get("sink") !== "off" : data.first.sink;
  setRight();
}

/** Returns the position of a query in its sequence, which the user sees; elsewhere a query is its row. */
const positionOf = (query) => stackNow().firstQuery + query;

/** Replaces selections that do not exist by existing ones. */
function setRight() {
  const stack = stackNow();
  if (!headIn(stack, page.layer, page.head)) ({ layer: page.layer, head: page.head } = stack.heads[0]);
  if (measured && !choicesOf(stack).includes(page.metric)) page.metric = firstMetric(stack);
  if (!VIEWS.includes(page.view) || (page.view === "picture" && !stack.picture)) page.view = "map";
  if (!blocksOf(stack).some((block) => block.name === page.texts)) page.texts = "all";
  if (page.query !== null && !shown(stack.queries, blockNow().query).includes(page.query)) page.query = null;
}

/** Names the keys of the sink: the first of them, and the number of the others. */
function sinkText(stack) {
  const named = stack.sinks.slice(0, SINKS).map((key) => `${keyTokensOf(stack)[key].text}${stack.pooled ? "" : ` ${key}`}`);
  const more = stack.sinks.length - named.length;
  return named.join(", ") + (more ? ` and ${more} more` : "");
}

const blockNow = () => blocksOf(stackNow()).find((block) => block.name === page.texts) ?? {};

/** Goes to another stack, head, view or query; with `replace`, for arrow keys, without a new history entry. */
function go(changes, { replace = false } = {}) {
  Object.assign(page, changes);
  setRight();
  const address = addressOf();
  if (hasAddress && address !== location.hash) {
    if (replace) location.replace(address);
    else location.hash = address;
  }
  return show();
}

// ---- showing

async function show() {
  const turn = ++latestTurn;
  const inHeads = by("heads").contains(document.activeElement);
  by("failure").hidden = true;
  showStack();
  showHead();
  if (inHeads) cellNow().focus();
  if (measured) showMetrics();
  if (data.beside) showBeside();
  const stack = stackNow();
  if (!hasMap(headNow())) return showNoMap();
  try {
    const name = `${page.stack}-${headNow().weights}`; // every stack has weights 0
    const own = unpacked.get(name, () => weightsOf(stack, headNow()));
    const [weights, image] = await Promise.all([own, imageOf(stack), smallMaps]);
    if (turn !== latestTurn) return;
    const cursor = scene?.view === page.view ? scene.cursor : null;
    scene = sceneOf(stack, weights, image);
    showScene();
    keepCursor(cursor);
    by("plot").dataset.shown = [stack.name, page.layer, page.head, page.view].join(" ");
  } catch (error) {
    if (turn !== latestTurn) return;
    by("failure").textContent = `This browser cannot decompress the weights: ${error.message}`;
    by("failure").hidden = false;
    throw error;
  }
}

/** Removes the scene for a head that has no map. */
function showNoMap() {
  scene = null;
  delete by("plot").dataset.shown;
}

function weightsOf(stack, each) {
  const text = by(`weights-${data.stacks.indexOf(stack)}-${each.weights}`).textContent;
  return unpack(text, stack.queries.length, keyTokensOf(stack).length, data.coding, stack.unit);
}

async function imageOf(stack) {
  if (!stack.picture) return null;
  if (!stack.picture.image) {
    const image = new Image();
    image.src = stack.picture.url;
    await image.decode();
    stack.picture.image = image;
  }
  return stack.picture.image;
}

/** Collects everything that a view needs. */
function sceneOf(stack, weights, image) {
  const block = blockNow();
  return {
    view: page.view,
    weights,
    image,
    picture: stack.picture,
    ownKeys: stack.ownKeys,
    firstQuery: stack.firstQuery,
    queryTokens: stack.queries,
    keyTokens: keyTokensOf(stack),
    queries: shown(stack.queries, block.query),
    keys: shown(keyTokensOf(stack), block.key),
    sinks: new Set(page.sink ? [] : stack.sinks),
    chosen: { query: page.query, key: null },
    cursor: { query: null, key: null },
    found: foundIn(stack),
    root: page.scale === "root",
    top: 1,
  };
}

let stackShown = null;

function showStack() {
  const stack = stackNow();
  if (stackShown !== page.stack) {
    stackShown = page.stack;
    const size = stack.queries.length * keyTokensOf(stack).length;
    unpacked = new Recent(Math.max(2, Math.min(64, Math.floor(ROOM_FOR_WEIGHTS / Math.max(1, size)))));
    for (const part of document.querySelectorAll("[data-stack]")) part.hidden = Number(part.dataset.stack) !== page.stack;
    by("picture-choice").hidden = !stack.picture;
    for (const id of ["maps-top", "top-of-all"]) by(id).textContent = topOf(stack);
    for (const id of ["strongest-number", "scale-linear"]) by(id).textContent = stack.label;
    by("scale-root").textContent = `√ ${stack.label}`;
    const tokens = [...stack.queries, ...keyTokensOf(stack)];
    by("special-choice").hidden = by("mark-special").hidden = !tokens.some((token) => token.special);
    by("sink-choice").title = `The sink: ${sinkText(stack)}`;
    by("mark-generated").hidden = !tokens.some((token) => token.generated);
    document.querySelector("main").classList.toggle("mapless", !stack.heads.some(hasMap));
    makeHeads(stack);
    makeBlocks(stack);
  }
  choose("stack", page.stack);
  choose("view", page.view);
  choose("texts", page.texts);
  choose("scale", page.scale);
  choose("top", page.top);
  by("special").checked = page.special;
  by("sink").checked = !page.sink;
  by("mark-sink").hidden = page.sink || page.view !== "map";
  by("marks").hidden = ["mark-special", "mark-generated", "mark-sink"].every((id) => by(id).hidden);
  by("zoom").hidden = page.view !== "map";
}

function choose(name, value) {
  for (const input of document.querySelectorAll(`input[name="${name}"]`)) input.checked = input.value === String(value);
}

function makeBlocks(stack) {
  const blocks = blocksOf(stack);
  const choices = ["all", ...blocks.map((block) => block.name)].map((name) => {
    const input = element("input", { type: "radio", name: "texts", value: name });
    return element("label", {}, input, element("span", {}, name === "all" ? "All" : name));
  });
  by("blocks").replaceChildren(element("legend", {}, "Texts"), ...choices);
  by("blocks").hidden = blocks.length === 0;
}

/** Creates an element with attributes, and children that are elements or text. */
function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// ---- the large plot

const canvas = by("canvas");
const context = canvas.getContext("2d");
const look = () => looks[page.view];

function showScene() {
  paintScene();
  showStrongest();
  showFound();
}

/** Computes the layout and paints, after the scene or the available room has changed. */
function paintScene() {
  if (!scene) return;
  const plot = by("plot");
  Object.assign(scene, coloursNow());
  const empty = scene.queries.length === 0 || scene.keys.length === 0;
  by("top").textContent = "";
  if (!empty) {
    const tallest = parseFloat(getComputedStyle(plot).maxHeight);
    const room = { width: plot.clientWidth, height: tallest, density: devicePixelRatio };
    scene.top = page.top === "one" ? 1 : look().strongest(scene);
    look().layout(context, scene, room, page.zoom);
    by("space").style.width = `${look().width}px`;
    by("space").style.height = plot.style.height = `${Math.ceil(look().height)}px`;
    by("top").textContent = page.top === "one" ? topOf(stackNow()) : scene.weights.text(scene.top);
    paintRamp();
  }
  scene.empty = empty;
  paint();
}

function isDark() {
  return (page.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
}

/** Returns the colours of the style sheet, for the canvas. */
function coloursNow() {
  const probe = by("said");
  const colour = (name) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  };
  const names = ["ground", "line", "ink", "soft", "faint", "chosen", "found", "written", "cursor"];
  const colours = Object.fromEntries(names.map((name) => [name, colour(name)]));
  colours.foundInk = colour("found-ink");
  colours.foundBand = colour("found-band");
  for (const [name, own] of [["missing", "missing"], ["leftOut", "left-out"]])
    colours[name] = colour(own).match(/\d+/g).slice(0, 3).map(Number);
  probe.style.color = "";
  return { colours, palette: palette(isDark()), lineShade: 190, veil: [248, 107, 0] };
}

let drawn = { width: 0, height: 0 };

function paint() {
  const plot = by("plot");
  const [width, height, density] = [plot.clientWidth, plot.clientHeight, devicePixelRatio];
  if (drawn.width !== width * density || drawn.height !== height * density) {
    drawn = { width: width * density, height: height * density };
    canvas.width = Math.round(drawn.width);
    canvas.height = Math.round(drawn.height);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  context.setTransform(density, 0, 0, density, 0, 0);
  context.fillStyle = scene.colours.ground;
  context.fillRect(0, 0, width, height);
  if (!scene.empty) return look().paint(context, scene, windowNow());
  context.fillStyle = scene.colours.soft;
  context.font = `14px ${FONT}`;
  context.textAlign = "center";
  context.fillText("No tokens are left to show.", width / 2, height / 2);
}

/** Returns the visible part of the plot. */
function windowNow() {
  const plot = by("plot");
  return {
    x: plot.scrollLeft,
    y: plot.scrollTop,
    width: plot.clientWidth,
    height: plot.clientHeight,
    density: devicePixelRatio,
  };
}

let frame = 0;

/** Paints once before the next frame, however often it is called. */
function paintSoon() {
  frame ||= requestAnimationFrame(() => {
    frame = 0;
    if (scene) paint();
  });
}

/** Paints the legend: from 0 at the left to full colour at the right, in equal steps of weight. */
function paintRamp() {
  const ramp = by("ramp").getContext("2d");
  for (let x = 0; x < 256; x++) {
    const shade = shadeOf({ top: 1, root: scene.root }, x / 255);
    ramp.fillStyle = cssOf(scene.palette[0]);
    ramp.fillRect(x, 0, 1, 1);
    ramp.fillStyle = page.view === "picture" ? cssOf(scene.veil, (VEIL * shade) / 255) : cssOf(scene.palette[shade]);
    ramp.fillRect(x, 0, 1, 1);
  }
}

// ---- the cursor: the weight or token under the pointer, or the one that the arrow keys moved to

let pointer = null; // its position while it is over the plot

/** Keeps the cursor in place after a change of head or query, and announces its new weight. */
function keepCursor(before) {
  if (pointer && !scene.empty) return setCursor(look().under(scene, pointer.x, pointer.y, windowNow()), { where: pointer });
  const kept = (index, indices) => (indices.includes(index) ? index : null);
  const key = kept(before?.key, scene.keys);
  const query = page.view === "picture" ? page.query : kept(before?.query, scene.queries);
  return setCursor({ query, key }, { aloud: key !== null });
}

/** Moves the cursor; `aloud` announces it to screen readers, but not while a pointer moves. */
function setCursor(at, { follow = false, where = null, aloud = false } = {}) {
  if (!scene) return;
  const next = at ?? { query: null, key: null };
  scene.cursor = { query: next.query, key: next.key };
  if (follow) bringIntoView(scene.cursor);
  showTip(where);
  if (aloud) sayCursor();
  for (const row of by("strongest").tBodies[0].rows) {
    const its = [Number(row.dataset.query), Number(row.dataset.key)];
    row.classList.toggle("at", its[0] === (next.query ?? page.query) && its[1] === next.key);
  }
  paintSoon();
}

function showTip(where) {
  const tip = by("tip");
  const { query, key } = tipPair();
  tip.hidden = key === null;
  if (tip.hidden) return;
  const weight = query === null ? scene.means?.[key] : scene.weights.at(query, key);
  const { unit } = stackNow();
  const text = query === null ? `${unit === null ? weight.toPrecision(2) : inDigits(weight * unit, 2)} on average` : scene.weights.text(weight);
  const from = query === null ? "all queries" : scene.queryTokens[query].text;
  by("tip-query").textContent = from;
  by("tip-key").textContent = scene.keyTokens[key].text;
  by("tip-weight").textContent = text;
  tip.dataset.query = query;
  tip.dataset.key = key;
  placeTip(where);
}

/** Announces the weight at the cursor, or else the token. */
function sayCursor() {
  const { query, key } = scene.cursor;
  const [from, to, weight] = ["tip-query", "tip-key", "tip-weight"].map((id) => by(id).textContent);
  const token = scene.queryTokens[query] ?? scene.keyTokens[key];
  if (!by("tip").hidden) say(`${from} to ${to}: ${weight}`);
  else if (token) say(token.text);
}

/** Returns the query and key of the weight at the cursor; only the picture has a mean over all queries. */
function tipPair() {
  const { query, key } = scene.cursor;
  const from = query ?? page.query;
  return from === null && page.view !== "picture" ? { query: null, key: null } : { query: from, key };
}

/** Places the tip beside the pointer, or else beside the weight, within the plot. */
function placeTip(where) {
  const tip = by("tip");
  const window = windowNow();
  const place = look().where(scene, scene.cursor);
  const at = where ?? { x: (place.x ?? 0) - window.x + place.size, y: (place.y ?? 0) - window.y + place.size };
  const [width, height] = [tip.offsetWidth, tip.offsetHeight];
  const x = at.x + 16 + width > window.width ? at.x - width - 12 : at.x + 16;
  const y = at.y + 16 + height > window.height ? at.y - height - 12 : at.y + 16;
  tip.style.transform = `translate(${Math.max(0, x)}px, ${Math.max(0, y)}px)`;
}

function bringIntoView(at) {
  const plot = by("plot");
  const { x, y, size, covered } = look().where(scene, at);
  const along = (place, scrolled, room, cover) => {
    if (place === null || size === 0) return scrolled;
    if (place - scrolled < cover) return place - cover - size;
    return place + size - scrolled > room ? place + 2 * size - room : scrolled;
  };
  plot.scrollLeft = along(page.view === "lines" ? null : x, plot.scrollLeft, plot.clientWidth, covered.left);
  plot.scrollTop = along(y, plot.scrollTop, plot.clientHeight, covered.above);
}

let saying = 0;

/** Announces a text to screen readers once the cursor rests. */
function say(text) {
  clearTimeout(saying);
  saying = setTimeout(() => {
    by("said").textContent = text;
  }, 150);
}

function pointOf(event) {
  const box = canvas.getBoundingClientRect();
  return { x: event.clientX - box.left, y: event.clientY - box.top };
}

function onPointer(event) {
  if (!scene || scene.empty) return;
  pointer = pointOf(event);
  setCursor(look().under(scene, pointer.x, pointer.y, windowNow()), { where: pointer });
}

function onClick(event) {
  if (!scene || scene.empty) return;
  const point = pointOf(event);
  const under = look().under(scene, point.x, point.y, windowNow());
  if (under) chooseUnder(under);
}

/** Selects the query of a weight; in the picture, the patch itself is the query. */
function chooseUnder({ query, key }) {
  if (page.view === "lines" && key !== null) return;
  const inPicture = page.view === "picture";
  const selected = inPicture ? queryOf(scene, key) : query;
  if (selected === null) return;
  const again = selected === page.query && (inPicture || key === null);
  go({ query: again ? null : selected }).then(() => say(by("detail-heading").textContent));
}

function onPlotKey(event) {
  if (!scene || scene.empty) return;
  if (event.altKey || event.metaKey) return; // Alt+arrow is the browser's history
  const steps = {
    ArrowLeft: [-1, 0],
    ArrowRight: [1, 0],
    ArrowUp: [0, -1],
    ArrowDown: [0, 1],
    PageUp: [0, -PAGE],
    PageDown: [0, PAGE],
    Home: event.ctrlKey ? [0, -Infinity] : [-Infinity, 0],
    End: event.ctrlKey ? [0, Infinity] : [Infinity, 0],
  };
  if (steps[event.key]) {
    event.preventDefault();
    setCursor(look().step(scene, scene.cursor, ...steps[event.key]), { follow: true, aloud: true });
  } else if (event.key === "Enter" || event.key === " ") {
    event.preventDefault();
    chooseUnder(scene.cursor);
  }
}

function zoomBy(factor) {
  const plot = by("plot");
  const next = factor === 0 ? 1 : Math.min(64, Math.max(1, page.zoom * factor));
  const middle = [(plot.scrollLeft + plot.clientWidth / 2) / page.zoom, (plot.scrollTop + plot.clientHeight / 2) / page.zoom];
  page.zoom = next;
  paintScene();
  plot.scrollTo(middle[0] * next - plot.clientWidth / 2, middle[1] * next - plot.clientHeight / 2);
}

// ---- the strongest keys

function showStrongest() {
  const restoreFocus = focusInDetail();
  const one = page.query !== null;
  const pairs = one ? strongestKeys(page.query) : strongestPairs();
  const token = one ? scene.queryTokens[page.query] : null;
  by("detail-heading").replaceChildren(...(one ? ["Query ", tokenElement(token, positionOf(page.query))] : [stackNow().label === "weight" ? "Strongest weights" : "Strongest"]));
  by("detail-note").textContent = one ? strongestNote(pairs) : `of this ${stackNow().ofHeads ? "head" : "map"}. Select a query to see its own.`;
  by("let-go").hidden = !one;
  by("sink-note").hidden = page.sink;
  by("sink-note").textContent = `without the sink: ${sinkText(stackNow())}`;
  by("strongest-query").hidden = one;
  by("strongest").tBodies[0].replaceChildren(...pairs.map((pair) => strongestRow(pair, one)));
  showLeftOut();
  restoreFocus();
}

/** Returns a function that restores the focus in a new list: same weight, else same place, else the plot. */
function focusInDetail() {
  const focused = document.activeElement;
  if (!by("detail").contains(focused)) return () => {};
  const row = focused.closest("tr");
  const place = row ? row.sectionRowIndex : 0;
  const isSame = ({ dataset }) => dataset.query === row?.dataset.query && dataset.key === row?.dataset.key;
  return () => {
    if (focused.checkVisibility()) return;
    const rows = [...by("strongest").tBodies[0].rows];
    const to = rows.find(isSame) ?? rows[Math.min(place, rows.length - 1)];
    (to?.querySelector("button") ?? by("plot")).focus();
  };
}

function strongestNote(pairs) {
  if (pairs.length === 0) return keysThatCount(scene).length ? "Its weights are not numbers." : "No keys are left.";
  const count = keysThatCount(scene).length;
  return pairs.length < count ? `The strongest ${pairs.length} of ${count} keys` : "All keys, strongest first";
}

function strongestKeys(query) {
  const pairs = keysThatCount(scene).map((key) => ({ query, key, weight: scene.weights.at(query, key) }));
  return pairs.filter((pair) => !Number.isNaN(pair.weight)).sort((a, b) => b.weight - a.weight).slice(0, STRONGEST);
}

function strongestPairs() {
  const best = [];
  const keys = keysThatCount(scene);
  for (const query of scene.queries)
    for (const key of keys) {
      const weight = scene.weights.at(query, key);
      if (best.length === STRONGEST && !(weight > best.at(-1).weight)) continue;
      if (Number.isNaN(weight)) continue;
      const place = best.findIndex((pair) => pair.weight < weight);
      best.splice(place < 0 ? best.length : place, 0, { query, key, weight });
      best.length = Math.min(best.length, STRONGEST);
    }
  return best;
}

function tokenElement(token, index) {
  const kind = token.generated ? "generated" : token.special ? "special" : "";
  const text = element("bdi", kind ? { class: kind } : {}, written(token));
  if (stackNow().pooled) return element("span", {}, text); // the text of a pooled cell contains its positions
  return element("span", {}, text, " ", element("span", { class: "index" }, String(index)));
}

function strongestRow({ query, key, weight }, one) {
  const row = element("tr", { "data-query": query, "data-key": key });
  const button = (token, index, onclick) => {
    const made = element("button", { type: "button" }, tokenElement(token, index));
    made.addEventListener("click", onclick);
    return element("td", {}, made);
  };
  const see = () => setCursor({ query, key }, { follow: true, aloud: true });
  if (!one) row.append(button(scene.queryTokens[query], positionOf(query), () => go({ query })));
  row.append(button(scene.keyTokens[key], key, one ? see : () => go({ query }).then(see)));
  const share = element("span", { class: "share", "aria-hidden": "true" });
  share.style.width = `${100 * Math.min(1, weight)}%`;
  row.append(element("td", { class: "weight" }, scene.weights.text(weight), share));
  return row;
}

function showLeftOut() {
  const note = by("left-out");
  note.textContent = "";
  const seen = new Set(keysThatCount(scene));
  if (page.query === null || seen.size === scene.keyTokens.length) return;
  let rest = 0;
  for (let key = 0; key < scene.keyTokens.length; key++) if (!seen.has(key)) rest += scene.weights.at(page.query, key);
  note.textContent = Number.isNaN(rest)
    ? "The weight of the tokens left out is not a number."
    : `Tokens left out receive ${stackNow().unit === null ? rest.toFixed(2) : inDigits(rest * stackNow().unit, 2)} of this query's attention.`;
}

// ---- finding a token

let match = 0;

/** Returns the tokens that contain the searched text. */
function foundIn(stack) {
  const searched = by("search").value.trim().toLowerCase();
  const block = blockNow();
  const matching = (tokens, words, segment) =>
    new Set(searched ? shown(tokens, segment).filter((i) => (words?.[i] ?? tokens[i].text).toLowerCase().includes(searched)) : []);
  const words = stack.words;
  return {
    query: matching(stack.queries, words?.queries, block.query),
    key: matching(keyTokensOf(stack), words?.keys ?? words?.queries, block.key),
  };
}

/** Returns all matches: the queries, then the keys that are not among these queries. */
function matches() {
  const { query: queries, key: keys } = scene.found;
  const others = [...keys].filter((key) => !queries.has(queryOf(scene, key)));
  return [...[...queries].map((query) => ({ query, key: null })), ...others.map((key) => ({ query: null, key }))];
}

function showFound() {
  const all = matches();
  const searched = by("search").value.trim();
  match = Math.min(match, Math.max(0, all.length - 1));
  by("found").textContent = !searched ? "" : all.length ? `${match + 1} of ${all.length}` : "none";
}

function find(step = 0) {
  if (!scene) return;
  scene.found = foundIn(stackNow());
  const all = matches();
  match = step && all.length ? (match + step + all.length) % all.length : 0;
  showFound();
  if (!all.length) return paintSoon();
  const { query, key } = all[match];
  if (query === null) return setCursor({ query, key }, { follow: true, aloud: true });
  const own = page.view === "picture" ? keyOf(scene, query) : null;
  return go({ query }, { replace: true }).then(() => bringIntoView({ query, key: own }));
}

function onSearchKey(event) {
  if (event.key === "Enter") {
    event.preventDefault();
    find(event.shiftKey ? -1 : 1);
  } else if (event.key === "Escape") {
    event.stopPropagation();
    by("search").value = "";
    find();
    by("plot").focus();
  }
}

// ---- other keys of the keyboard, and event listeners

function setTheme(theme) {
  page.theme = theme;
  document.documentElement.dataset.theme = theme;
  repaint();
}

const toggleTheme = () => setTheme(isDark() ? "light" : "dark");

/** Takes the theme of the notebook around this frame: browsers do not tell it. */
function onMessage({ source, data: theme }) {
  if (source === parent && (theme === "light" || theme === "dark")) setTheme(theme);
}

function repaint() {
  paintHeads();
  paintScene();
  if (data.beside) showBeside();
}

/** Handles character keys, only if the maps or nothing has the focus (WCAG 2.2, 2.1.4). */
function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || by("help").open) return;
  if (event.key !== "Escape" && !event.target.closest("#heads, #plot") && event.target !== document.body) return;
  const { heads } = stackNow();
  const at = heads.indexOf(headNow());
  const does = {
    "?": () => by("help").showModal(),
    "/": () => by("search").focus(),
    t: toggleTheme,
    m: () => go({ view: "map" }),
    l: () => go({ view: "lines" }),
    p: () => go({ view: "picture" }),
    s: () => go({ sink: !page.sink }).then(() => say(page.sink ? "with the sink" : "without the sink")),
    "[": () => goTo(heads[at - 1]),
    "]": () => goTo(heads[at + 1]),
    "+": () => zoomBy(1.5),
    "=": () => zoomBy(1.5),
    "-": () => zoomBy(1 / 1.5),
    0: () => zoomBy(0),
    Escape: () => (setCursor(null), page.query !== null && go({ query: null })),
  };
  if (!does[event.key]) return;
  event.preventDefault();
  does[event.key]();
}

function onChoice({ target }) {
  if (target.name === "stack") go({ stack: Number(target.value), query: null });
  else if (target.name === "view" || target.name === "texts") go({ [target.name]: target.value });
  else if (target.id === "metric") go({ metric: target.value });
  else if (target.id === "special") go({ special: target.checked });
  else if (target.id === "sink") go({ sink: !target.checked });
  else if (target.name === "scale" || target.name === "top") {
    page[target.name] = target.value;
    show();
  }
}

function listen() {
  addEventListener("hashchange", () => {
    if (location.hash === addressOf()) return;
    readAddress();
    show();
  });
  addEventListener("keydown", onKey);
  addEventListener("change", onChoice);
  if (!hasAddress) addEventListener("message", onMessage);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
  new ResizeObserver(() => paintScene()).observe(by("plot"));
  addEventListener("resize", paintScene); // zooming the page changes devicePixelRatio
  by("heads").addEventListener("keydown", onHeadsKey);
  listenForCue();
  if (measured) listenForMetrics();
  by("plot").addEventListener("scroll", paintSoon, { passive: true });
  by("plot").addEventListener("keydown", onPlotKey);
  by("plot").addEventListener("blur", () => setCursor(null));
  canvas.addEventListener("pointermove", onPointer);
  canvas.addEventListener("pointerleave", () => {
    pointer = null;
    setCursor(null);
  });
  canvas.addEventListener("click", onClick);
  by("search").addEventListener("input", () => find());
  by("search").addEventListener("keydown", onSearchKey);
  by("theme").addEventListener("click", toggleTheme);
  by("help-button").addEventListener("click", () => by("help").showModal());
  by("help-close").addEventListener("click", () => by("help").close());
  by("help-address").hidden = !hasAddress;
  by("let-go").addEventListener("click", () => go({ query: null }));
  by("larger").addEventListener("click", () => zoomBy(1.5));
  by("smaller").addEventListener("click", () => zoomBy(1 / 1.5));
  by("fit").addEventListener("click", () => zoomBy(0));
}

if (data.stacks.length) {
  readAddress();
  listen();
  show();
}
