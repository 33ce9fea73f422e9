// "Ring": a collective hop by hop, beside its other algorithms and the sizes at which each is fastest.

async function showRing(screen, setup) {
  const { hop, ...sizes } = setup;
  const answer = await answerFor("ring", typed(sizes));
  if (!answer) return;
  const last = (answer.frames?.length || 1) - 1, shown = hop >= 0 && hop <= last ? Math.round(hop) : last;
  const right = answer.reason ? element("p", { class: "reason" }, answer.reason)
    : element("section", {}, hopByHop(answer, setup, shown), element("div", { class: "boards" }, algorithms(answer), crossover(answer)));
  put(screen, element("div", { class: "columns" }, controls("ring", answer.knobs, sizes, answer), right));
}

function hopByHop(answer, setup, shown) {
  const frame = answer.frames[shown], last = answer.frames.length - 1, words = shown ? `hop ${shown} of ${last}, at ${frame.text}` : "start";
  const at = (hop) => replaced("ring", { ...setup, hop: String(hop) });
  const play = () => playFrom(0, last, 900, (hop) => read().screen === "ring" && (at(hop), true));
  const slider = element("input", { type: "range", id: "hop", min: 0, max: last, value: shown, "aria-label": "hop", "aria-valuetext": words, oninput: (event) => at(event.target.value) });
  return element("section", {},
    element("p", { class: "what" }, answer.idea),
    element("p", { class: "slide" }, element("button", { type: "button", class: "plain", id: "play", onclick: play }, "play"), slider, element("output", { for: "hop" }, words)),
    circle(frame),
    element("p", {}, answer.conclusion));
}

// The ranks on a circle, what each holds, and arrows for what has just arrived.
function circle(frame) {
  const count = frame.boards.length, wide = count > 5, width = wide ? 1000 : 760, height = wide ? 540 : 440, cx = width / 2, cy = height / 2;
  const point = (rank) => [cx + (wide ? 380 : 260) * Math.sin((2 * Math.PI * rank) / count), cy - (wide ? 215 : 165) * Math.cos((2 * Math.PI * rank) / count)];
  const arrows = frame.arrivals.map(([from, to]) => {
    const [[ax, ay], [bx, by]] = [point(from), point(to)];
    const share = Math.min(0.22, 70 / Math.hypot(bx - ax, by - ay)), trim = (p, q) => p + (q - p) * share;
    return svg("line", { x1: trim(ax, bx), y1: trim(ay, by), x2: trim(bx, ax), y2: trim(by, ay), stroke: colour("communication"), "stroke-width": 5, "marker-end": "url(#tip)" });
  });
  const arrived = new Set(frame.arrivals.map(([, to]) => to));
  const full = Math.min(44, (wide ? 220 : 300) / frame.boards[0].length);
  const boxes = frame.boards.map((board, rank) => {
    const [x, y] = point(rank), left = x - (board.length * full) / 2;
    return svg("g", {}, svg("text", { x, y: y - 24, "text-anchor": "middle", "font-weight": 600 }, `GPU ${rank}`),
      board.map((held, at) => svg("g", {},
        svg("rect", { x: left + at * full, y: y - 16, width: full - 2, height: 28, rx: 3, fill: colour(held === "." ? "idle" : `part ${at % 4}`), stroke: arrived.has(rank) ? colour("communication") : "none", "stroke-width": 2 }),
        svg("text", { x: left + at * full + full / 2 - 1, y: y + 3, "text-anchor": "middle", fill: inkOn(held === "." ? "idle" : `part ${at % 4}`), "font-size": full < 36 ? 9 : 12 }, held === "." ? "" : held))));
  });
  const marker = svg("defs", {}, svg("marker", { id: "tip", viewBox: "0 0 10 10", refX: 7, refY: 5, markerWidth: 4, markerHeight: 4, orient: "auto" }, svg("path", { d: "M0,0L10,5L0,10z", fill: colour("communication") })));
  return savable("ring", svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": frame.boards.map((board, rank) => `GPU ${rank} holds ${board.join(" ")}`).join("; ") }, marker, arrows, boxes));
}

function algorithms(answer) {
  const rows = answer.algorithms.map((row) => element("tr", {}, [row.algorithm, row.text, row.sent, row.messages_per_rank].map((cell) => element("td", {}, String(cell)))));
  return element("section", {}, element("h2", {}, "All algorithms, this size"), element("div", { class: "scroll" }, element("table", {},
    element("thead", {}, element("tr", {}, ["", "time", "most sent by a GPU", "messages"].map((head) => element("th", {}, head)))), element("tbody", {}, rows))));
}

// Seconds by size, both in powers of ten: where lines cross, another algorithm is fastest.
function crossover(answer) {
  const { bytes, seconds } = answer.curves, names = Object.keys(seconds);
  const colours = ["part 1", "part 2", "part 3", "part 0", "part 1", "part 2", "part 3"], dashes = ["", "7 3", "2 3", "9 3 2 3", "4 4", "12 4", "1 2"];
  const all = names.flatMap((name) => seconds[name]).filter((value) => value > 0);
  const [low, high] = [Math.log10(Math.min(...all)), Math.log10(Math.max(...all))];
  const left = 60, width = 520, height = 300, x = (value) => left + ((Math.log10(value) - 2) / 8) * (width - left), y = (value) => 12 + (1 - (Math.log10(value) - low) / (high - low || 1)) * (height - 40);
  const lines = names.map((name, at) => svg("path", { d: `M${bytes.map((size, i) => `${x(size).toFixed(1)},${y(seconds[name][i]).toFixed(1)}`).join("L")}`, fill: "none", stroke: colour(colours[at % 7]), "stroke-width": 2.5, "stroke-dasharray": dashes[at % 7], "data-says": name }));
  const powers = [2, 4, 6, 8, 10].map((power) => svg("text", { x: x(10 ** power), y: height - 8, "text-anchor": "middle", class: "faint" }, ["100 B", "10 kB", "1 MB", "100 MB", "10 GB"][(power - 2) / 2]));
  const times = [];
  for (let power = Math.ceil(low); power <= high; power += 1) {
    const words = power < -6 ? `${10 ** (power + 9)} ns` : power < -3 ? `${10 ** (power + 6)} us` : power < 0 ? `${10 ** (power + 3)} ms` : `${10 ** power} s`;
    times.push(svg("line", { x1: left, x2: width, y1: y(10 ** power), y2: y(10 ** power), class: "line" }), svg("text", { x: left - 6, y: y(10 ** power) + 4, "text-anchor": "end", class: "faint" }, words));
  }
  const here = svg("line", { x1: x(answer.bytes), x2: x(answer.bytes), y1: 8, y2: height - 26, stroke: "var(--faint)", "stroke-dasharray": "3 3" });
  const key = element("ul", { class: "legend" }, names.map((name, at) => {
    const mark = svg("svg", { viewBox: "0 0 30 10", class: "key", "aria-hidden": "true" }, svg("line", { x1: 0, x2: 30, y1: 5, y2: 5, stroke: colour(colours[at % 7]), "stroke-width": 3, "stroke-dasharray": dashes[at % 7] }));
    return element("li", {}, mark, name);
  }));
  return element("section", {}, element("h2", {}, "Which is fastest, by size"),
    savable("crossover", svg("svg", { viewBox: `0 0 ${width + 20} ${height}`, role: "img", "aria-label": `seconds by bytes of ${names.join(", ")}` }, times, powers, here, lines)), key);
}
