// Three views of a head: a map, lines between tokens, and a picture's patches. Each computes its layout for
// the available room, paints itself, finds what is under a point, and finds the place of a weight.
// The canvas is only as large as the visible window, however large the map is.

const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif";
const PAD = 10;
const LEAST_CELL = 0.25; // of the map, px; the map is scrolled instead of shrinking further
const MOST_CELL = 56;
const VEIL = 0.85; // the opacity of the full colour over a picture

/** Returns the shade of a weight: 0 to 255. */
function shadeOf(scene, weight) {
  const share = Math.min(1, weight / scene.top);
  return Math.round(255 * (scene.root ? Math.sqrt(share) : share)) || 0; // NaN gets 0
}

/** Returns a colour of the scale in CSS, with an opacity. */
function cssOf([red, green, blue], opacity = 1) {
  return `rgb(${red} ${green} ${blue} / ${opacity})`;
}

/** Returns a colour as one pixel of an image. */
function wordOf(colour) {
  return new Uint32Array(new Uint8Array([...colour, 255]).buffer)[0];
}

const clamp = (number, least, most) => Math.min(most, Math.max(least, number));

/** Returns the key that is the same token as a query, or null. */
function keyOf(scene, query) {
  return scene.ownKeys && query !== null ? scene.firstQuery + query : null;
}

/** Returns the query that is the same token as a key, or null. */
function queryOf(scene, key) {
  const query = key - scene.firstQuery;
  return scene.ownKeys && key !== null && query >= 0 && query < scene.queryTokens.length ? query : null;
}

/** Truncates a text to a width. */
function cut(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  const letters = Array.from(text);
  let [fits, tooMany] = [0, letters.length];
  while (tooMany - fits > 1) {
    const middle = (fits + tooMany) >> 1;
    const part = `${letters.slice(0, middle).join("")}…`;
    if (context.measureText(part).width <= width) fits = middle;
    else tooMany = middle;
  }
  return `${letters.slice(0, fits).join("")}…`;
}

function fontOf(token, size, strong) {
  return `${token.special ? "italic " : ""}${strong ? "600 " : ""}${size}px ${FONT}`;
}

function written(token) {
  return token.generated ? `• ${token.text}` : token.text;
}

/** Returns the width of the widest of some tokens. */
function widestOf(context, tokens, size) {
  context.font = `${size}px ${FONT}`;
  return tokens.reduce((most, token) => Math.max(most, context.measureText(written(token)).width), 0);
}

/** Returns the highlight of a token: chosen, under the cursor, found by the search, or none. */
function standing(scene, axis, index) {
  if (scene.chosen[axis] === index) return "chosen";
  if (scene.cursor[axis] === index) return "cursor";
  return scene.found[axis].has(index) ? "found" : "";
}

function inkOf(scene, state, token) {
  if (state === "chosen") return scene.colours.chosen;
  if (state === "found") return scene.colours.foundInk;
  if (state === "cursor") return scene.colours.ink;
  return token.special ? scene.colours.faint : token.generated ? scene.colours.written : scene.colours.soft;
}

/** Returns the visible keys without those left out as the sink. */
function keysThatCount(scene) {
  return scene.sinks.size ? scene.keys.filter((key) => !scene.sinks.has(key)) : scene.keys;
}

class Look {
  /** Returns the largest of the weights that count. */
  strongest(scene) {
    let strongest = 0;
    const keys = keysThatCount(scene);
    for (const query of scene.queries)
      for (const key of keys) {
        const weight = scene.weights.at(query, key);
        if (weight > strongest) strongest = weight;
      }
    return strongest || 1;
  }
}

/** Queries from top to bottom, keys from left to right, a weight in each cell. */
class MapLook extends Look {
  size = 12; // of the labels, px

  layout(context, scene, room, zoom) {
    const tokens = (axis, all) => scene[axis].map((index) => scene[all][index]);
    const most = Math.min(150, room.width * 0.26);
    const widest = (axis, all) => Math.min(most, Math.max(24, widestOf(context, tokens(axis, all), this.size)));
    this.labels = { query: widest("queries", "queryTokens"), key: widest("keys", "keyTokens") };
    this.left = 2 * PAD + this.labels.query;
    this.above = 2 * PAD + this.labels.key;
    const fits = Math.min(
      (room.width - this.left - PAD) / scene.keys.length,
      (room.height - this.above - PAD) / scene.queries.length,
    );
    const cellSize = Math.min(MOST_CELL, Math.max(LEAST_CELL, fits) * zoom) * room.density;
    this.whole = cellSize >= 4; // cells of whole device pixels have equal sizes; tiny cells are blended instead
    this.cell = (this.whole ? Math.floor(cellSize + 1e-6) : cellSize) / room.density;
    const width = this.left + this.cell * scene.keys.length + PAD;
    this.left += Math.floor(Math.max(0, room.width - width) / 2); // centred
    this.width = Math.max(width, room.width);
    this.height = this.above + this.cell * scene.queries.length + PAD;
    this.image = this.imageOf(scene);
  }

  /** Returns the map as an image with one pixel per cell. */
  imageOf(scene) {
    const image = new ImageData(scene.keys.length, scene.queries.length);
    const words = new Uint32Array(image.data.buffer);
    const colours = scene.palette.map(wordOf);
    const missing = wordOf(scene.colours.missing);
    const sink = wordOf(scene.colours.leftOut);
    let i = 0;
    for (const query of scene.queries)
      for (const key of scene.keys) {
        const weight = scene.weights.at(query, key);
        const colour = Number.isNaN(weight) ? missing : colours[shadeOf(scene, weight)];
        words[i++] = scene.sinks.has(key) ? sink : colour;
      }
    const canvas = new OffscreenCanvas(image.width, image.height);
    canvas.getContext("2d").putImageData(image, 0, 0);
    return canvas;
  }

  paint(context, scene, window) {
    const { cell, left, above } = this;
    const [x, y] = [left - window.x, above - window.y];
    const [width, height] = [cell * scene.keys.length, cell * scene.queries.length];
    context.save();
    context.beginPath();
    context.rect(left, above, window.width - left, window.height - above);
    context.clip();
    context.imageSmoothingEnabled = !this.whole;
    context.drawImage(this.image, x, y, width, height);
    if (cell >= 14) this.paintGaps(context, scene, x, y, window.density);
    this.paintBands(context, scene, x, y, width, height);
    context.strokeStyle = scene.colours.line;
    context.lineWidth = 1;
    context.strokeRect(x - 0.5, y - 0.5, width + 1, height + 1);
    context.restore();
    this.paintLabels(context, scene, window, "query");
    this.paintLabels(context, scene, window, "key");
    this.paintAxes(context, scene);
  }

  /** Paints hairlines between cells that are large enough to be counted. */
  paintGaps(context, scene, x, y, density) {
    const hair = 1 / density;
    context.fillStyle = scene.colours.ground;
    for (let i = 1; i < scene.keys.length; i++)
      context.fillRect(x + i * this.cell - hair, y, hair, this.cell * scene.queries.length);
    for (let i = 1; i < scene.queries.length; i++)
      context.fillRect(x, y + i * this.cell - hair, this.cell * scene.keys.length, hair);
  }

  paintBands(context, scene, x, y, width, height) {
    const { cell } = this;
    const band = (axis, index, line, style) => {
      const place = scene[axis === "query" ? "queries" : "keys"].indexOf(index);
      if (place < 0) return;
      const [bx, by, bw, bh] = axis === "query" ? [x, y + place * cell, width, cell] : [x + place * cell, y, cell, height];
      if (line) {
        context.strokeStyle = style;
        context.lineWidth = line;
        context.strokeRect(bx - line / 2, by - line / 2, bw + line, bh + line);
      } else {
        context.fillStyle = style;
        context.fillRect(bx, by, bw, bh);
      }
    };
    for (const axis of ["query", "key"]) {
      for (const index of scene.found[axis]) band(axis, index, 0, scene.colours.foundBand);
      if (scene.cursor[axis] !== null) band(axis, scene.cursor[axis], 1, scene.colours.cursor);
      if (scene.chosen[axis] !== null) band(axis, scene.chosen[axis], 2, scene.colours.chosen);
    }
  }

  paintLabels(context, scene, window, axis) {
    const onSide = axis === "query";
    const [indices, tokens] = onSide ? [scene.queries, scene.queryTokens] : [scene.keys, scene.keyTokens];
    const [start, end, scrolled] = onSide
      ? [this.above, window.height, window.y]
      : [this.left, window.width, window.x];
    context.save();
    context.beginPath();
    const half = this.size / 2 + 2; // with small cells, the first label starts before its cell
    if (onSide) context.rect(0, start - half, this.left, end - start + half);
    else context.rect(start - half, 0, end - start + half, this.above);
    context.clip();
    const step = Math.max(1, Math.ceil((this.size + 2) / this.cell));
    const first = Math.max(0, Math.floor(scrolled / this.cell / step) * step);
    const last = Math.min(indices.length, Math.ceil((scrolled + end - start) / this.cell) + 1);
    const [plain, standingOut] = [[], []];
    for (let place = first; place < last; place++) {
      const state = standing(scene, axis, indices[place]);
      if (state) standingOut.push([place, state]);
      else if (place % step === 0) plain.push([place, state]);
    }
    const covered = (place) => standingOut.some(([other]) => Math.abs(other - place) * this.cell < this.size + 2);
    for (const [place, state] of [...plain.filter(([each]) => !covered(each)), ...standingOut.reverse()])
      this.paintLabel(context, scene, onSide, start - scrolled + (place + 0.5) * this.cell, tokens[indices[place]], state);
    context.restore();
  }

  paintLabel(context, scene, onSide, middle, token, state) {
    const room = this.labels[onSide ? "query" : "key"] + 6;
    context.save();
    if (onSide) context.translate(this.left - 7, middle);
    else {
      context.translate(middle, this.above - 7);
      context.rotate(-Math.PI / 2);
    }
    context.font = fontOf(token, this.size, state === "chosen" || state === "cursor");
    context.textAlign = onSide ? "right" : "left";
    context.textBaseline = "middle";
    const text = cut(context, written(token), room);
    if (state) {
      const width = context.measureText(text).width + 6;
      context.fillStyle = state === "found" ? scene.colours.found : scene.colours.ground;
      context.fillRect(onSide ? 3 - width : -3, -this.size / 2 - 2, width, this.size + 4);
    }
    context.fillStyle = inkOf(scene, state, token);
    context.fillText(text, 0, 0);
    context.restore();
  }

  /** Paints the names of the axes in the corner. */
  paintAxes(context, scene) {
    context.font = `11px ${FONT}`;
    context.fillStyle = scene.colours.faint;
    context.textAlign = "right";
    context.textBaseline = "alphabetic";
    if (this.labels.query < 42 || this.labels.key < 24) return;
    context.fillText("key →", this.left - 16, this.above - 27);
    context.fillText("query ↓", this.left - 16, this.above - 13);
  }

  /** Returns what is under a point: a weight, or, on a label, a query or a key. */
  under(scene, x, y, window) {
    const place = (point, start, scrolled, indices) => {
      if (point < start) return null;
      return indices[Math.floor((point - start + scrolled) / this.cell)] ?? undefined;
    };
    const query = place(y, this.above, window.y, scene.queries);
    const key = place(x, this.left, window.x, scene.keys);
    if (query === undefined || key === undefined) return null;
    return query === null && key === null ? null : { query, key };
  }

  /** Returns the place of a query, a key or both in the scrollable area. */
  where(scene, { query, key }) {
    const [row, column] = [scene.queries.indexOf(query), scene.keys.indexOf(key)];
    return {
      x: column < 0 ? null : this.left + column * this.cell,
      y: row < 0 ? null : this.above + row * this.cell,
      size: this.cell,
      covered: { left: this.left, above: this.above },
    };
  }

  step(scene, cursor, across, down) {
    const moved = (indices, index, by) => indices[clamp(indices.indexOf(index) + by, 0, indices.length - 1)];
    return { query: moved(scene.queries, cursor.query, down), key: moved(scene.keys, cursor.key, across) };
  }
}

/** Queries at the left, keys at the right, a line for each weight, as in BertViz. */
class LinesLook extends Look {
  most = 4000; // more lines than these would merge into a grey area

  layout(context, scene, room) {
    const count = Math.max(scene.queries.length, scene.keys.length);
    this.above = 30;
    this.row = Math.min(34, Math.max(17, Math.floor((room.height - this.above - PAD) / count)));
    this.size = this.row > 21 ? 14 : 12;
    this.width = room.width;
    this.height = this.above + this.row * count + PAD;
    const used = Math.min(room.width, 680);
    const most = used * 0.34;
    const column = (axis, all) => widestOf(context, scene[axis].map((i) => scene[all][i]), this.size);
    const [leftWidth, rightWidth] = [column("queries", "queryTokens"), column("keys", "keyTokens")].map((width) =>
      Math.min(most, Math.max(40, width + 14)),
    );
    const start = (room.width - used) / 2 + PAD;
    this.columns = { left: start + leftWidth, right: start + used - 2 * PAD - rightWidth, leftWidth, rightWidth };
    this.lines = this.linesOf(scene);
  }

  /** Returns the visible lines, the weakest first: those above a shade that keeps their number at `most`. */
  linesOf(scene) {
    const counts = new Array(256).fill(0);
    const counting = keysThatCount(scene);
    for (const query of scene.queries)
      for (const key of counting) counts[shadeOf(scene, scene.weights.at(query, key))]++;
    let [from, total] = [255, counts[255]];
    while (from > 8 && total + counts[from - 1] <= this.most) total += counts[--from];
    const lines = [];
    scene.queries.forEach((query, row) => {
      scene.keys.forEach((key, column) => {
        const shade = scene.sinks.has(key) ? 0 : shadeOf(scene, scene.weights.at(query, key));
        if (shade >= from) lines.push({ query, key, row, column, shade });
      });
    });
    return lines.sort((a, b) => a.shade - b.shade);
  }

  /** Returns all lines of one query or one key, including faint ones. */
  linesAt(scene, { query, key }) {
    const lines = [];
    const add = (q, k, row, column) => {
      if (scene.sinks.has(k)) return;
      const shade = shadeOf(scene, scene.weights.at(q, k));
      if (shade > 0) lines.push({ query: q, key: k, row, column, shade });
    };
    if (query !== null) {
      const row = scene.queries.indexOf(query);
      if (row >= 0) scene.keys.forEach((each, column) => add(query, each, row, column));
    } else {
      const column = scene.keys.indexOf(key);
      if (column >= 0) scene.queries.forEach((each, row) => add(each, key, row, column));
    }
    return lines.sort((a, b) => a.shade - b.shade);
  }

  /** Returns the only token whose lines are shown, if any: the one under the pointer, or the chosen query. */
  focus(scene) {
    if (scene.cursor.query !== null) return { query: scene.cursor.query, key: null };
    if (scene.chosen.query !== null) return { query: scene.chosen.query, key: null };
    return scene.cursor.key !== null ? { query: null, key: scene.cursor.key } : null;
  }

  middleOf(row, window) {
    return this.above + (row + 0.5) * this.row - window.y;
  }

  paint(context, scene, window) {
    const focus = this.focus(scene);
    const lines = focus ? this.linesAt(scene, focus) : this.lines;
    context.save();
    context.beginPath();
    context.rect(0, this.above, window.width, window.height - this.above);
    context.clip();
    this.paintLines(context, scene, window, lines);
    this.paintTokens(context, scene, window, "query", focus, lines);
    this.paintTokens(context, scene, window, "key", focus, lines);
    context.restore();
    context.font = `11px ${FONT}`;
    context.fillStyle = scene.colours.faint;
    context.textBaseline = "middle";
    context.textAlign = "right";
    context.fillText("queries", this.columns.left - 7, this.above / 2);
    context.textAlign = "left";
    context.fillText("keys", this.columns.right + 7, this.above / 2);
  }

  paintLines(context, scene, window, lines) {
    const { left, right } = this.columns;
    const bend = (right - left) * 0.42;
    const outside = (y) => (y < 0 ? -1 : y > window.height ? 1 : 0);
    for (const { row, column, shade } of lines) {
      const [from, to] = [this.middleOf(row, window), this.middleOf(column, window)];
      if (outside(from) && outside(from) === outside(to)) continue;
      const strength = shade / 255;
      context.strokeStyle = cssOf(scene.palette[scene.lineShade], 0.03 + 0.92 * strength);
      context.lineWidth = 0.6 + 2.4 * strength;
      context.beginPath();
      context.moveTo(left, from);
      context.bezierCurveTo(left + bend, from, right - bend, to, right, to);
      context.stroke();
    }
  }

  paintTokens(context, scene, window, axis, focus, lines) {
    const onLeft = axis === "query";
    const [indices, tokens] = onLeft ? [scene.queries, scene.queryTokens] : [scene.keys, scene.keyTokens];
    const { left, right, leftWidth, rightWidth } = this.columns;
    const shades = new Map(focus ? lines.map((line) => [line[axis], line.shade]) : []);
    const first = Math.max(0, Math.floor(window.y / this.row) - 1);
    const last = Math.min(indices.length, Math.ceil((window.y + window.height) / this.row));
    for (let place = first; place < last; place++) {
      const [index, token] = [indices[place], tokens[indices[place]]];
      const middle = this.middleOf(place, window);
      const state = standing(scene, axis, index);
      const [x, width] = onLeft ? [left - leftWidth, leftWidth] : [right, rightWidth];
      const shade = focus && focus[axis] === null ? (shades.get(index) ?? 0) : 0;
      const back = state === "found" ? scene.colours.found : cssOf(scene.palette[scene.lineShade], (0.5 * shade) / 255);
      context.fillStyle = back;
      context.fillRect(x, middle - this.row / 2 + 1, width, this.row - 2);
      if (state === "chosen" || state === "cursor") {
        context.fillStyle = state === "chosen" ? scene.colours.chosen : scene.colours.soft;
        context.fillRect(onLeft ? left - 2 : right, middle - this.row / 2 + 1, 2, this.row - 2);
      }
      context.font = fontOf(token, this.size, state === "chosen" || state === "cursor");
      context.textBaseline = "middle";
      context.textAlign = onLeft ? "right" : "left";
      context.fillStyle = shade > 60 ? scene.colours.ink : inkOf(scene, state, token);
      context.fillText(cut(context, written(token), width - 12), onLeft ? left - 8 : right + 8, middle);
    }
  }

  under(scene, x, y, window) {
    const { left, right, leftWidth, rightWidth } = this.columns;
    if (y < this.above) return null;
    const place = Math.floor((y - this.above + window.y) / this.row);
    if (x <= left && x >= left - leftWidth && place < scene.queries.length)
      return { query: scene.queries[place], key: null };
    if (x >= right && x <= right + rightWidth && place < scene.keys.length)
      return { query: scene.chosen.query, key: scene.keys[place] };
    return null;
  }

  where(scene, { query, key }) {
    const [row, column] = [scene.queries.indexOf(query), scene.keys.indexOf(key)];
    const place = column >= 0 ? column : row;
    return {
      x: column >= 0 ? this.columns.right : this.columns.left - this.columns.leftWidth,
      y: place < 0 ? null : this.above + place * this.row,
      size: this.row,
      covered: { left: 0, above: this.above },
    };
  }

  /** Moves up and down in a column, and across to the other one. An infinite step goes to an end of the column. */
  step(scene, cursor, across, down) {
    if (Math.abs(across) === Infinity) return this.step(scene, cursor, 0, across);
    const { queries, keys } = scene;
    if (across > 0 || (cursor.key !== null && across === 0)) {
      const place = Math.max(0, keys.indexOf(cursor.key));
      return { query: scene.chosen.query, key: keys[clamp(place + down, 0, keys.length - 1)] };
    }
    const from = queries.indexOf(cursor.query ?? scene.chosen.query);
    return { query: queries[clamp(from + down, 0, queries.length - 1)], key: null };
  }
}

/** The picture that a vision model attended to, and over it the weights that one query or all give to its patches. */
class PictureLook extends Look {
  layout(context, scene, room) {
    const { picture, image } = scene;
    this.grey = greyOf(image);
    this.apart = scene.keys.filter((key) => this.patchOf(scene, key) === null);
    const chips = this.apart.map((key) => widestOf(context, [scene.keyTokens[key]], 12) + 18);
    this.above = this.apart.length ? 46 : PAD;
    const scale = Math.min((room.width - 2 * PAD) / image.width, (room.height - this.above - PAD) / image.height);
    this.pictureWidth = image.width * scale;
    this.pictureHeight = image.height * scale;
    this.left = (room.width - this.pictureWidth) / 2;
    this.width = room.width;
    this.height = this.above + this.pictureHeight + PAD;
    this.patch = { width: this.pictureWidth / picture.columns, height: this.pictureHeight / picture.rows };
    let x = this.left;
    this.chips = this.apart.map((key, i) => {
      const chip = { key, x, y: 11, width: chips[i], height: 26 };
      x += chips[i] + 6;
      return chip;
    });
  }

  patchOf({ picture }, key) {
    const patch = key - picture.first;
    return patch >= 0 && patch < picture.rows * picture.columns ? patch : null;
  }

  /** Returns a function from a key to its weight: from the chosen query, or on average. */
  weightsOfKeys(scene) {
    if (scene.chosen.query !== null) return (key) => scene.weights.at(scene.chosen.query, key);
    scene.means ??= meansOf(scene);
    return (key) => scene.means[key];
  }

  strongest(scene) {
    const weightOf = this.weightsOfKeys(scene);
    const patches = keysThatCount(scene).filter((key) => this.patchOf(scene, key) !== null);
    return patches.reduce((most, key) => Math.max(most, weightOf(key) || 0), 0) || 1;
  }

  paint(context, scene, window) {
    const weightOf = this.weightsOfKeys(scene);
    const [dx, dy] = [-window.x, -window.y];
    context.drawImage(this.grey, this.left + dx, this.above + dy, this.pictureWidth, this.pictureHeight);
    for (const key of keysThatCount(scene)) {
      const box = this.boxOf(scene, key);
      const strength = shadeOf(scene, weightOf(key)) / 255;
      context.fillStyle = cssOf(scene.veil, VEIL * strength);
      context.fillRect(box.x + dx, box.y + dy, box.width, box.height);
    }
    this.paintChips(context, scene, dx, dy);
    this.outline(context, scene, scene.cursor.key, 1.5, scene.colours.cursor, dx, dy);
    const self = keyOf(scene, scene.chosen.query);
    this.outline(context, scene, self, 5, scene.colours.ground, dx, dy);
    this.outline(context, scene, self, 2.5, scene.colours.chosen, dx, dy);
    for (const key of scene.found.key) this.outline(context, scene, key, 2, scene.colours.found, dx, dy);
  }

  paintChips(context, scene, dx, dy) {
    for (const { key, x, y, width, height } of this.chips) {
      context.strokeStyle = scene.colours.line;
      context.lineWidth = 1;
      context.strokeRect(x + dx + 0.5, y + dy + 0.5, width - 1, height - 1);
      context.font = fontOf(scene.keyTokens[key], 12, keyOf(scene, scene.chosen.query) === key);
      context.textAlign = "center";
      context.textBaseline = "middle";
      context.fillStyle = scene.colours.ink;
      context.fillText(written(scene.keyTokens[key]), x + dx + width / 2, y + dy + height / 2);
    }
  }

  outline(context, scene, key, line, colour, dx, dy) {
    if (key === null || !scene.keys.includes(key)) return;
    const box = this.boxOf(scene, key);
    context.strokeStyle = colour;
    context.lineWidth = line;
    context.strokeRect(box.x + dx, box.y + dy, box.width, box.height);
  }

  boxOf(scene, key) {
    const patch = this.patchOf(scene, key);
    if (patch === null) return this.chips.find((chip) => chip.key === key);
    const { width, height } = this.patch;
    const [row, column] = [Math.floor(patch / scene.picture.columns), patch % scene.picture.columns];
    return { x: this.left + column * width, y: this.above + row * height, width, height };
  }

  under(scene, x, y, window) {
    const [px, py] = [x + window.x, y + window.y];
    const inside = (box) => px >= box.x && px < box.x + box.width && py >= box.y && py < box.y + box.height;
    const key = scene.keys.find((each) => inside(this.boxOf(scene, each)));
    return key === undefined ? null : { query: scene.chosen.query, key };
  }

  where(scene, { key }) {
    if (key === null || !scene.keys.includes(key)) return { x: null, y: null, size: 0, covered: { left: 0, above: 0 } };
    const box = this.boxOf(scene, key);
    return { x: box.x, y: box.y, size: box.height, covered: { left: 0, above: 0 } };
  }

  step(scene, cursor, across, down) {
    const place = scene.keys.indexOf(cursor.key ?? keyOf(scene, scene.chosen.query));
    const patch = place < 0 ? null : this.patchOf(scene, scene.keys[place]);
    let to = place < 0 ? 0 : place + across + down;
    if (patch !== null) {
      const { rows, columns } = scene.picture;
      const [row, column] = [Math.floor(patch / columns), patch % columns];
      if (down) to = place + columns * (clamp(row + down, 0, rows - 1) - row);
      else if (Math.abs(across) > 1) to = place - column + (across > 0 ? columns - 1 : 0);
    }
    return { query: scene.chosen.query, key: scene.keys[clamp(to, 0, scene.keys.length - 1)] };
  }
}

/** Returns the mean weight of each key over the visible queries. */
function meansOf(scene) {
  const sums = new Float64Array(scene.keyTokens.length);
  let rows = 0;
  for (const query of scene.queries) {
    if (Number.isNaN(scene.weights.at(query, scene.keys[0]))) continue;
    rows++;
    for (const key of scene.keys) sums[key] += scene.weights.at(query, key);
  }
  return sums.map((sum) => sum / Math.max(1, rows));
}

/** Returns a picture in grey, so that only the weights are coloured. */
function greyOf(image) {
  if (image.grey) return image.grey;
  const canvas = new OffscreenCanvas(image.width, image.height);
  const context = canvas.getContext("2d");
  context.drawImage(image, 0, 0);
  const pixels = context.getImageData(0, 0, image.width, image.height);
  for (let i = 0; i < pixels.data.length; i += 4) {
    const [red, green, blue] = pixels.data.subarray(i, i + 3);
    pixels.data.fill(0.2126 * red + 0.7152 * green + 0.0722 * blue, i, i + 3);
  }
  context.putImageData(pixels, 0, 0);
  image.grey = canvas;
  return canvas;
}
