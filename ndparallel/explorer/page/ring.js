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
    element("p", { class: "slide" }, button("play", "play", play), slider, element("output", { for: "hop" }, words)),
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
  const rows = answer.algorithms.map((row) => [row.algorithm, row.text, row.sent, row.messages_per_rank]);
  return element("section", {}, element("h2", {}, "All algorithms, this size"), table(["", "time", "most sent by a GPU", "messages"], rows));
}

const LINES = [["part 1", ""], ["part 2", "7 3"], ["part 3", "2 3"], ["part 0", "9 3 2 3"], ["part 1", "4 4"], ["part 2", "12 4"], ["part 3", "1 2"]];
const CURVES = { left: 60, width: 520, height: 300 }; // of the picture

// How the line of an algorithm is drawn.
function stroke(at, width) {
  const [name, dashes] = LINES[at % LINES.length];
  return { fill: "none", stroke: colour(name), "stroke-width": width, "stroke-dasharray": dashes };
}

// Seconds by size, both in powers of ten: where lines cross, another algorithm is fastest.
function crossover({ bytes: here, curves: { bytes, seconds, ticks } }) {
  const names = Object.keys(seconds), { left, width, height } = CURVES;
  const powers = names.flatMap((name) => seconds[name]).filter((value) => value > 0).map(Math.log10);
  const low = Math.min(...powers), span = Math.max(...powers) - low || 1;
  const x = (value) => left + ((Math.log10(value) - 2) / 8) * (width - left);
  const y = (value) => 12 + (1 - (Math.log10(value) - low) / span) * (height - 40);
  const line = (name, at) => svg("path", { d: `M${bytes.map((size, i) => `${x(size).toFixed(1)},${y(seconds[name][i]).toFixed(1)}`).join("L")}`, ...stroke(at, 2.5), "data-says": name });
  const drawn = [
    ticks.seconds.map(([value, text]) => [svg("line", { x1: left, x2: width, y1: y(value), y2: y(value), class: "line" }), svg("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end", class: "faint" }, text)]),
    ticks.bytes.map(([value, text]) => svg("text", { x: x(value), y: height - 8, "text-anchor": "middle", class: "faint" }, text)),
    svg("line", { x1: x(here), x2: x(here), y1: 8, y2: height - 26, stroke: "var(--faint)", "stroke-dasharray": "3 3" }),
    names.map(line),
  ];
  return element("section", {}, element("h2", {}, "Which is fastest, by size"),
    savable("crossover", svg("svg", { viewBox: `0 0 ${width + 20} ${height}`, role: "img", "aria-label": `seconds by bytes of ${names.join(", ")}` }, drawn)),
    element("ul", { class: "legend" }, names.map(lineKey)));
}

function lineKey(name, at) {
  const line = svg("line", { x1: 0, x2: 30, y1: 5, y2: 5, ...stroke(at, 3) });
  return element("li", {}, svg("svg", { viewBox: "0 0 30 10", class: "key", "aria-hidden": "true" }, line), name);
}
