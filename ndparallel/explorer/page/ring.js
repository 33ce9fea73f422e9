// "Ring": a collective hop by hop, beside its other algorithms and the sizes at which each is fastest.

async function showRing(screen, setup) {
  const { hop, ...sizes } = setup;
  const answer = await answerFor("ring", typed(sizes));
  if (!answer) return;
  const last = (answer.frames?.length || 1) - 1,
    shown = hop >= 0 && hop <= last ? Math.round(hop) : 0;
  const right = answer.reason
    ? element("p", { class: "reason" }, answer.reason)
    : element("section", {}, hopByHop(answer, setup, shown), element("div", { class: "boards" }, algorithms(answer), crossover(answer)));
  put(screen, element("div", { class: "columns" }, form("ring", answer.controls, sizes, answer), right));
}

function hopByHop(answer, setup, shown) {
  const frame = answer.frames[shown],
    last = answer.frames.length - 1,
    words = shown ? `hop ${shown} of ${last}, at ${frame.text}` : "start";
  const at = (hop) => replaced("ring", { ...setup, hop: String(hop) });
  const play = () => playFrom(0, last, 900, (hop) => read().screen === "ring" && (at(hop), true));
  const slider = element("input", {
    type: "range",
    id: "hop",
    min: 0,
    max: last,
    value: shown,
    "aria-label": "hop",
    "aria-valuetext": words,
    oninput: (event) => at(event.target.value),
  });
  return element(
    "section",
    {},
    element("p", { class: "what" }, answer.idea),
    element("p", { class: "slide" }, button("play", "play", play), slider, element("output", { for: "hop" }, words)),
    circle(frame, answer.frames[shown - 1]),
    element("p", {}, answer.conclusion),
  );
}

// The ranks on a circle, what each holds, and arrows for what has just arrived since the frame before.
function circle({ boards, arrivals }, before) {
  const place = placeOnCircle(boards.length);
  const isNew = (rank, at) => before !== undefined && before.boards[rank][at] !== boards[rank][at];
  const says = boards.map((board, rank) => `GPU ${rank} holds ${board.join(" ")}`).join("; ");
  const drawn = boards.map((board, rank) => boardAt(board, rank, place, (at) => isNew(rank, at)));
  return picture(
    "ring",
    place.width,
    place.height,
    says,
    arrowHead(),
    arrivals.map((ends) => arrow(...ends.map(place.of))),
    drawn,
  );
}

// How large the picture is, how wide a board may be, and where each rank stands.
function placeOnCircle(count) {
  const large = { width: 1000, height: 540, board: 220, across: 380, down: 215 },
    small = { width: 760, height: 440, board: 300, across: 260, down: 165 },
    narrow = { width: 480, height: 440, board: 156, across: 155, down: 165 };
  const size = count > 5 ? large : ON_PHONE ? narrow : small,
    angle = (rank) => (2 * Math.PI * rank) / count;
  const of = (rank) => [
    size.width / 2 + size.across * Math.sin(angle(rank)),
    size.height / 2 - size.down * Math.cos(angle(rank)),
  ];
  return { ...size, of };
}

function arrow([ax, ay], [bx, by]) {
  const share = Math.min(0.22, 70 / Math.hypot(bx - ax, by - ay)),
    near = (a, b) => a + (b - a) * share;
  return lineAt(near(ax, bx), near(ay, by), near(bx, ax), near(by, ay), {
    stroke: colour("communication"),
    "stroke-width": 5,
    "marker-end": "url(#arrow)",
  });
}

function arrowHead() {
  const head = svg("path", { d: "M0,0L10,5L0,10z", fill: colour("communication") });
  return svg(
    "defs",
    {},
    svg("marker", { id: "arrow", viewBox: "0 0 10 10", refX: 7, refY: 5, markerWidth: 4, markerHeight: 4, orient: "auto" }, head),
  );
}

// What a rank holds, cell by cell; an outline around what has just arrived.
function boardAt(board, rank, place, isNew) {
  const [x, y] = place.of(rank),
    wide = Math.min(44, place.board / board.length),
    left = x - (board.length * wide) / 2;
  const outline = (at) => (isNew(at) ? { stroke: colour("communication"), "stroke-width": 3, class: "arrived" } : {});
  const cell = (held, at) => {
    const name = held === "." ? "idle" : `part ${at % 4}`;
    return [
      rectAt(left + at * wide, y - 16, wide - 2, 28, { rx: 3, fill: colour(name), ...outline(at) }),
      textAt(held === "." ? "" : held, left + (at + 0.5) * wide - 1, y + 3, {
        "text-anchor": "middle",
        fill: inkOn(name),
        "font-size": wide < 36 ? 9 : 12,
      }),
    ];
  };
  return [textAt(`GPU ${rank}`, x, y - 24, { "text-anchor": "middle", "font-weight": 600 }), board.map(cell)];
}

function algorithms(answer) {
  const rows = answer.algorithms.map((row) => [row.algorithm, row.text, row.sent, row.messages_per_rank]);
  return element(
    "section",
    {},
    element("h2", {}, "All algorithms, this size"),
    table(["", "time", "most sent", "messages"], rows),
  );
}

const LINES = [
  ["part 1", ""],
  ["part 2", "7 3"],
  ["part 3", "2 3"],
  ["part 0", "9 3 2 3"],
  ["part 1", "4 4"],
  ["part 2", "12 4"],
  ["part 3", "1 2"],
];
const CURVES = { left: 60, width: 520, height: 300 }; // of the picture

// How the line of an algorithm is drawn.
function stroke(at, width) {
  const [name, dashes] = LINES[at % LINES.length];
  return { fill: "none", stroke: colour(name), "stroke-width": width, "stroke-dasharray": dashes };
}

// Seconds by size, both in powers of ten: where lines cross, another algorithm is fastest.
function crossover({ bytes: here, curves: { bytes, seconds, ticks } }) {
  const names = Object.keys(seconds),
    { left, width, height } = CURVES;
  const powers = names
    .flatMap((name) => seconds[name])
    .filter((value) => value > 0)
    .map(Math.log10);
  const low = Math.min(...powers),
    span = Math.max(...powers) - low || 1;
  const x = (value) => left + ((Math.log10(value) - 2) / 8) * (width - left);
  const y = (value) => 12 + (1 - (Math.log10(value) - low) / span) * (height - 40);
  const line = (name, at) =>
    svg("path", {
      d: `M${bytes.map((size, i) => `${x(size).toFixed(1)},${y(seconds[name][i]).toFixed(1)}`).join("L")}`,
      ...stroke(at, 2.5),
      "data-says": name,
    });
  const drawn = [
    ticks.seconds.map(([value, text]) => [
      lineAt(left, y(value), width, y(value), { class: "line" }),
      textAt(text, left - 6, y(value) + 4, { "text-anchor": "end", class: "faint" }),
    ]),
    ticks.bytes.map(([value, text]) => textAt(text, x(value), height - 8, { "text-anchor": "middle", class: "faint" })),
    lineAt(x(here), 8, x(here), height - 26, { stroke: "var(--faint)", "stroke-dasharray": "3 3" }),
    names.map(line),
  ];
  return element(
    "section",
    {},
    element("h2", {}, "Which is fastest, by size"),
    picture("crossover", width + 20, height, `seconds by bytes of ${names.join(", ")}`, drawn),
    element("ul", { class: "legend" }, names.map(lineKey)),
  );
}

function lineKey(name, at) {
  const line = lineAt(0, 5, 30, 5, stroke(at, 3));
  return element("li", {}, svg("svg", { viewBox: "0 0 30 10", class: "key", "aria-hidden": "true" }, line), name);
}
