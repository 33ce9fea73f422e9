// "Cut it": one layout of GPUs. All controls at the left; what the step is made of, where the GPUs stand and what they hold
// at the right.

const CELLS = [
  ["step", "step"],
  ["speedup", "speedup"],
  ["exposed", "exposed"],
  ["bubble", "bubble"],
  ["sent", "sent"],
  ["memory", "memory"],
  ["equals one GPU", "=0D"],
];

async function showCut(screen, setup) {
  const answer = await answerFor("cut", typed(setup));
  if (answer)
    put(
      screen,
      element(
        "div",
        { class: "columns" },
        form("cut", answer.controls, setup, answer),
        answer.row ? cutStep(answer) : reasonWhy("cut", setup, answer),
      ),
    );
}

function cutStep(answer) {
  return element(
    "section",
    { "aria-label": "one training step" },
    numbers(answer, CELLS),
    boards(answer),
    answer.remarks.map((words) => element("p", {}, words)),
    traffic(answer),
  );
}

function boards(answer) {
  if (!answer.timeline) return element("p", { class: "reason" }, answer.reason);
  return element(
    "div",
    {},
    element(
      "div",
      { class: "boards" },
      element("section", {}, element("h2", {}, "Where the step goes, on average over the GPUs"), stepBars(answer)),
      element(
        "section",
        {},
        element("h2", {}, "Where the GPUs stand, and what each holds when it is fullest"),
        grid(answer),
        legend(answer.memory.kinds.map((kind) => `memory ${kind}`)),
      ),
    ),
    element("section", {}, element("h2", {}, "The same step over time"), laterTimeline(answer, { height: 16 }), activities(answer)),
  );
}

// GPUs in their nodes: a box with what it holds, and its place on every axis. Those in the same group light up together.
function grid(answer) {
  const nodes = [...new Set(answer.gpus.map((gpu) => gpu.node))];
  const perRow = 4,
    w = 118,
    h = 96,
    pad = 10;
  const limit = Math.max(...answer.memory.gpus.map((gpu) => gpu.peak_bytes));
  let y = 0;
  const boxes = nodes.map((node) => {
    const members = answer.gpus.filter((gpu) => gpu.node === node);
    const rows = Math.ceil(members.length / perRow),
      top = y;
    y += rows * h + 30;
    return svg(
      "g",
      {},
      rectAt(1, top + 1, perRow * w + 2 * pad, rows * h + 22, { rx: 8, fill: "none", class: "line" }),
      textAt(`node ${node}`, pad, top + 15, { class: "faint" }),
      members.map((gpu, at) => gpuBox(gpu, answer, pad + (at % perRow) * w, top + 20 + Math.floor(at / perRow) * h, w - 8, h - 6, limit)),
    );
  });
  return picture("gpus", perRow * w + 2 * pad + 2, y, answer.gpus.map((gpu) => `GPU ${gpu.rank} in node ${gpu.node}`).join(", "), boxes);
}

function gpuBox(gpu, answer, x, y, w, h, limit) {
  const held = answer.memory.gpus[gpu.rank];
  const groups = Object.entries(gpu.groups).map(([axis, ranks]) => `${axis} with GPU ${ranges(ranks.filter((rank) => rank !== gpu.rank))}`);
  return svg(
    "g",
    { "data-says": [`GPU ${gpu.rank} holds ${held.peak}`, ...groups].join("; ") },
    rectAt(x, y, w, h, { rx: 6, fill: "var(--ground)", stroke: "var(--faint)" }),
    textAt(`GPU ${gpu.rank}`, x + 8, y + 18, { "font-weight": 600 }),
    Object.entries(gpu.place).map(([axis, at], line) => textAt(`${axis} ${at}`, x + 8, y + 36 + 13 * line, { class: "faint" })),
    textAt(held.peak, x + w - 8, y + 18, { "text-anchor": "end", class: "faint" }),
    stack(held, answer.memory.kinds, x + w - 26, y + h - 6, (h - 40) / limit),
  );
}

// What a GPU holds, kind upon kind, from `bottom` upwards.
function stack(held, kinds, x, bottom, perByte) {
  return held.by_kind.map((bytes, at) => {
    const height = bytes * perByte;
    bottom -= height;
    return rectAt(x, bottom, 18, height, {
      fill: colour(`memory ${kinds[at]}`),
      "data-says": `GPU ${held.rank}, ${kinds[at]}: ${held.texts[at]}`,
    });
  });
}

function traffic(answer) {
  if (!answer.traffic?.length) return null;
  const heads = Object.keys(answer.traffic[0]).map((name) => name.replace(/_.*/, ""));
  return element("section", {}, element("h2", {}, "Who talks how often, over which link"), table(heads, answer.traffic_text));
}
