// Says of the cell under the pointer, or that arrow keys lead to, which positions it is about, and how much.

const pictures = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";
const [WRONG, MISSING] = ["2", "3"];

/** Returns a sentence about a cell. */
function sentence({ positions, amounts, kinds, mask }, row, column) {
  const [query, key, kind] = [positions[row], positions[column], kinds[row][column]];
  const there = kind === "1" || kind === WRONG;
  let text;
  if (amounts) {
    const amount = there ? ` by ${amounts[row][column]} of the largest output` : "";
    text = `changing input ${key} ${there ? "moves" : "does not move"} output ${query}${amount}`;
  } else {
    text = `${query} gives ${there ? "" : "no "}weight to ${key}`;
  }
  if (kind === WRONG) text += ", and should not";
  if (kind === MISSING) text += ", and should";
  if (mask) text += mask[row][column] === "1" ? " · the mask shows it" : " · the mask hides it";
  return text;
}

document.querySelectorAll(".grids[data-picture]").forEach((grids) => {
  const picture = pictures[grids.dataset.picture];
  const n = picture.positions.length;
  const drawings = [...grids.querySelectorAll("svg.influence")];
  const status = document.createElement("p");
  status.setAttribute("role", "status");
  status.textContent = "point at a cell";
  grids.after(status);
  const spots = drawings.map((drawing) => {
    const spot = document.createElementNS(SVG, "rect");
    spot.setAttribute("class", "spot");
    spot.setAttribute("width", "1");
    spot.setAttribute("height", "1");
    spot.setAttribute("visibility", "hidden");
    drawing.append(spot);
    return spot;
  });
  let cell = null;

  function show(row, column) {
    cell = [Math.max(0, Math.min(n - 1, row)), Math.max(0, Math.min(n - 1, column))];
    spots.forEach((spot) => {
      spot.setAttribute("x", cell[1]);
      spot.setAttribute("y", cell[0]);
      spot.setAttribute("visibility", "visible");
    });
    status.textContent = sentence(picture, ...cell);
  }

  const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  drawings.forEach((drawing) => {
    drawing.querySelectorAll("title").forEach((title) => title.remove());
    drawing.setAttribute("aria-label", "influence: arrow keys lead from cell to cell");
    drawing.setAttribute("tabindex", "0");
    drawing.addEventListener("pointermove", (event) => {
      const place = new DOMPoint(event.clientX, event.clientY).matrixTransform(drawing.getScreenCTM().inverse());
      const [row, column] = [Math.floor(place.y), Math.floor(place.x)];
      if (Math.min(row, column) >= 0 && Math.max(row, column) < n) show(row, column);
    });
    drawing.addEventListener("keydown", (event) => {
      const step = steps[event.key];
      if (!step) return;
      const [row, column] = cell ?? [0, 0];
      show(...(cell ? [row + step[0], column + step[1]] : [0, 0]));
      event.preventDefault();
    });
  });
});
