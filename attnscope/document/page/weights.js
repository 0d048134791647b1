"use strict";
// Weights: unpacked, formatted as numbers, converted to colours. Nothing here accesses the document.

/**
 * One head's weights, as packing.py packs them.
 *
 * Each weight is the middle of its quantization cell, so its precision is the width of that cell.
 */
class Weights {
  constructor(values, keyCount, coding, unit) {
    this.values = values;
    this.keyCount = keyCount;
    this.coding = coding;
    this.unit = unit; // values are shares of it; null: of 1
    this.fineFrom = ((coding.lowFrom - 1) / coding.cells) ** 2;
  }

  at(query, key) {
    return this.values[query * this.keyCount + key];
  }

  /** Formats a weight with its correct digits, the last one ±1. If that is only one digit, adds the error. */
  text(weight) {
    if (Number.isNaN(weight)) return "not a number";
    if (weight === 0) return "0";
    const cell = 1 / this.coding.cells / (weight >= this.fineFrom ? 256 : 1);
    if (this.unit !== null) {
      const exact = Math.floor(-Math.log10(cell / Math.sqrt(weight))); // digits, by the largest relative error
      return inDigits(weight * this.unit, Math.min(3, Math.max(1, exact)));
    }
    const width = 2 * Math.sqrt(weight) * cell; // of the quantization cell: (√w + cell/2)² - (√w - cell/2)²
    const digits = Math.min(6, Math.floor(-Math.log10(width)));
    const text = weight.toFixed(digits);
    if (Number(text) === 0) return `< ${(10 ** -digits).toFixed(digits)}`;
    const significant = text.replace(/^[0.]+/, "").length;
    return significant > 1 || digits === 6 ? text : withMargin(weight, width / 2, digits + 1);
  }
}

/** Formats a number with at most this many significant digits. */
function inDigits(number, digits) {
  return String(Number(number.toPrecision(digits)));
}

/** Formats a number and its largest error, including its rounding. */
function withMargin(number, error, digits) {
  const unit = 10 ** -digits;
  const margin = Math.ceil((error + unit / 2) / unit) * unit;
  return `${number.toFixed(digits)} ± ${margin.toFixed(digits)}`;
}

/** Decodes base64. */
function bytesOf(base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

/** Decompresses a zlib stream. */
async function inflated(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Decodes a head's weights from their text in the page. */
async function unpack(text, queryCount, keyCount, coding, unit) {
  const bytes = await inflated(bytesOf(text));
  const { cells, notANumber, lowFrom } = coding;
  const values = new Float32Array(queryCount * keyCount);
  const middles = new Float32Array(256); // of the quantization cells without a low byte
  for (let high = 1; high < 256; high++) middles[high] = ((high - 0.5) / cells) ** 2;
  middles[notANumber] = NaN;
  let from = 2 * keyCount;
  let low = from + queryCount * keyCount;
  for (let place = 0; place < keyCount; place++) {
    const key = bytes[2 * place] | (bytes[2 * place + 1] << 8);
    for (let query = 0, to = key; query < queryCount; query++, to += keyCount) {
      const high = bytes[from++];
      if (high < lowFrom) values[to] = middles[high];
      else {
        const root = (high - 1 + (bytes[low++] + 0.5) / 256) / cells;
        values[to] = high === notANumber ? NaN : root * root;
      }
    }
  }
  return new Weights(values, keyCount, coding, unit);
}

/** A least-recently-used cache. */
class Recent {
  constructor(most) {
    this.most = most;
    this.kept = new Map(); // a Map keeps the insertion order of its keys
  }

  /** Returns a promise from the cache, or else creates it; one that fails is not kept. */
  get(name, make) {
    let value = this.kept.get(name);
    if (!value) {
      value = make();
      value.catch(() => this.kept.delete(name));
    }
    this.kept.delete(name);
    this.kept.set(name, value);
    if (this.kept.size > this.most) this.kept.delete(this.kept.keys().next().value);
    return value;
  }
}

/** Converts OKLCH to sRGB bytes. Source: Ottosson 2020, "A perceptual color space for image processing". */
function rgbOf(lightness, chroma, hue) {
  const a = chroma * Math.cos(hue);
  const b = chroma * Math.sin(hue);
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  const linear = [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ];
  return linear.map((light) => {
    const inside = Math.min(1, Math.max(0, light));
    const bent = inside <= 0.0031308 ? 12.92 * inside : 1.055 * inside ** (1 / 2.4) - 0.055;
    return Math.round(255 * bent);
  });
}

/** The hues of numbers above 0 and below, in degrees: orange and blue, as in figures and terminals. */
const ORANGE = 52;
const BLUE = 250;

/**
 * Returns 256 colours of one hue in even steps of lightness: darker on a light page, lighter on a dark one.
 * The colour of 0 is that of the background in both schemes.
 */
function palette(dark, hueOf = ORANGE) {
  const [from, to] = dark ? [0.215, 0.96] : [0.985, 0.27];
  const hue = hueOf * (Math.PI / 180);
  return Array.from({ length: 256 }, (_, i) => {
    const t = i / 255;
    const chroma = dark ? 0.012 + 0.125 * Math.sin(Math.PI * t) : 0.003 + 0.15 * Math.sin(Math.PI * 0.8 * t);
    return rgbOf(from + (to - from) * t, chroma, hue);
  });
}
