// "Cut it": one layout of GPUs. All knobs at the left; what the step is made of, where the GPUs stand and what they hold
// at the right.

let pinned = null;

async function showCut(screen, setup) {
  const answer = await ask("cut", typed(setup));
  if (!answer) return;
  if (answer.error) return say(answer.error);
  say(answer.reason || "");
  showCommand(answer.command);
  const right = answer.row
    ? element("section", { "aria-label": "one training step" }, numbers(answer), boards(answer), answer.remarks.map((words) => element("p", {}, words)), traffic(answer))
    : element("section", {}, element("p", { class: "reason" }, answer.reason));
  keepFocus(() => screen.replaceChildren(element("div", { class: "columns" }, controls("cut", answer.knobs, setup, answer), right)));
}

// All knobs, under their headings. A stop that cannot be says why.
function controls(screen, knobs, setup, answer) {
  const groups = [...new Set(knobs.map((knob) => knob.group))];
  return element("form", { "aria-label": "what is set", onsubmit: (event) => event.preventDefault() },
    groups.map((group) => element("fieldset", {}, element("legend", {}, group),
      knobs.filter((knob) => knob.group === group).map((knob) => control(screen, knob, setup)))),
    answer.row && answer.timeline ? pin(answer) : null);
}

function control(screen, knob, setup) {
  const set = (value) => {
    const stop = knob.stops.find((each) => String(each.value) === String(value));
    if (stop.reason) return say(`${knob.name} ${value}: ${stop.reason}`);
    go(screen, { ...setup, [knob.name]: value });
  };
  const id = `knob-${knob.name}`;
  const what = element("span", { class: "what", id: `${id}-what` }, `${knob.name.replaceAll("_", " ")}: ${knob.what}`);
  if (knob.is_words) {
    const options = knob.stops.map((stop) => element("option", { value: stop.value, disabled: Boolean(stop.reason), selected: stop.value === knob.value, title: stop.reason || null }, stop.value));
    return element("label", { class: "knob" }, what, element("select", { id, onchange: (event) => set(event.target.value) }, options));
  }
  const stops = knob.stops.map((stop) => element("label", { class: stop.reason ? "illegal" : "", title: stop.reason || null },
    element("input", { type: "radio", name: id, id: `${id}-${stop.value}`, value: stop.value, checked: stop.value === knob.value, "aria-describedby": stop.reason ? "said" : null,
      onfocus: () => stop.reason && say(`${knob.name} ${stop.value}: ${stop.reason}`), onchange: (event) => set(event.target.value) }),
    element("span", {}, String(stop.value))));
  return element("div", { class: "knob", role: "radiogroup", "aria-labelledby": `${id}-what` }, what, element("div", { class: "stops" }, stops));
}

// Keep this set-up beside the next ones.
function pin(answer) {
  const same = pinned && pinned.command === answer.command;
  const toggle = () => { pinned = same ? null : answer; show(); };
  return element("button", { type: "button", class: "plain", id: "pin", "aria-pressed": String(Boolean(same)), onclick: toggle }, same ? "unpin" : "pin, to compare");
}

function numbers(answer) {
  const shown = ["step", "speedup", "exposed", "bubble", "sent", "memory", "=0D"];
  const names = { exposed: "waits", bubble: "bubble", "=0D": "equals one GPU" };
  const cell = (name) => element("div", {}, element("dt", {}, names[name] || name), element("dd", {}, answer.cells[name] === "=" ? "yes" : answer.cells[name]),
    pinned && pinned !== answer ? element("dd", { class: "ghost" }, `pinned: ${pinned.cells[name] === "=" ? "yes" : pinned.cells[name]}`) : null);
  return element("dl", { class: "numbers" }, shown.map(cell));
}

function boards(answer) {
  if (!answer.timeline) return element("p", { class: "reason" }, answer.reason);
  return element("div", {},
    element("div", { class: "boards" },
      element("section", {}, element("h2", {}, "Where the step goes, in the mean of all GPUs"), stepBars(answer)),
      element("section", {}, element("h2", {}, "Where the GPUs stand, and what the fullest moment of each holds"), grid(answer), legend(answer.memory.kinds.map((kind) => `memory ${kind}`)))),
    element("section", {}, element("h2", {}, "The same step over time"), element("div", { class: "scroll" }, timelinePicture(answer, { height: 16, memory: false }))));
}

// Bars of one step: this set-up, the pinned one, and the work itself spread over all GPUs.
function stepBars(answer) {
  const rows = [["this", answer]];
  if (pinned && pinned !== answer) rows.push(["pinned", pinned]);
  const longest = Math.max(...rows.map(([, each]) => each.row.step_seconds));
  const width = 560, left = 62, scale = (width - left) / longest;
  const colourOf = (name) => (name === "compute" ? "forward" : name === "bubble" ? "idle" : "waiting");
  const bar = ([name, each], at) => {
    let x = left;
    const segments = each.parts.map((part) => {
      const w = part.seconds * scale, here = x;
      x += w;
      return svg("g", {}, svg("rect", { x: here, y: at * 46 + 4, width: w, height: 26, fill: colour(colourOf(part.name)), stroke: "var(--ground)" }, title(`${part.name}: ${part.text}`)),
        w > 9 * part.name.length ? svg("text", { x: here + 5, y: at * 46 + 21, style: null, fill: inkOn(colourOf(part.name)) }, part.name) : null);
    });
    return svg("g", {}, svg("text", { x: 0, y: at * 46 + 21 }, name), segments);
  };
  const ideal = (answer.row.step_seconds * answer.row.efficiency) || 0;
  const end = rows.length * 46;
  const text = answer.parts.map((part) => element("li", {}, `${part.name}: ${part.text}`));
  return element("div", {},
    svg("svg", { viewBox: `0 0 ${width} ${end + 22}`, role: "img", "aria-label": answer.parts.map((part) => `${part.name} ${part.text}`).join("; ") },
      rows.map(bar),
      svg("line", { x1: left + ideal * scale, x2: left + ideal * scale, y1: 0, y2: end, stroke: "var(--ink)", "stroke-dasharray": "4 3" }),
      svg("text", { x: left + ideal * scale + 4, y: end + 12, class: "faint" }, "one GPU's step / GPUs")),
    element("ul", { class: "legend" }, text));
}

// GPUs in their nodes: a box with what it holds, and its place on every axis. Those in the same group light up together.
function grid(answer) {
  const nodes = [...new Set(answer.gpus.map((gpu) => gpu.node))];
  const perRow = 4, w = 118, h = 96, pad = 10;
  const limit = Math.max(...answer.memory.gpus.map((gpu) => gpu.peak_bytes));
  let y = 0;
  const boxes = nodes.map((node) => {
    const members = answer.gpus.filter((gpu) => gpu.node === node);
    const rows = Math.ceil(members.length / perRow), top = y;
    y += rows * h + 30;
    return svg("g", {},
      svg("rect", { x: 1, y: top + 1, width: perRow * w + 2 * pad, height: rows * h + 22, rx: 8, fill: "none", class: "line" }),
      svg("text", { x: pad, y: top + 15, class: "faint" }, `node ${node}`),
      members.map((gpu, at) => gpuBox(gpu, answer, pad + (at % perRow) * w, top + 20 + Math.floor(at / perRow) * h, w - 8, h - 6, limit)));
  });
  return svg("svg", { viewBox: `0 0 ${perRow * w + 2 * pad + 2} ${y}`, role: "img", "aria-label": answer.gpus.map((gpu) => `GPU ${gpu.rank} in node ${gpu.node}`).join(", ") }, boxes);
}

function gpuBox(gpu, answer, x, y, w, h, limit) {
  const held = answer.memory.gpus[gpu.rank];
  const place = Object.entries(gpu.place).map(([axis, at]) => `${axis} ${at}`).join("  ");
  const tall = h - 40;
  let bottom = y + h - 6;
  const stack = held.by_kind.map((bytes, at) => {
    const part = (bytes / limit) * tall;
    bottom -= part;
    return svg("rect", { x: x + w - 26, y: bottom, width: 18, height: part, fill: colour(`memory ${answer.memory.kinds[at]}`) }, title(`${answer.memory.kinds[at]}`));
  });
  const groups = Object.entries(gpu.groups).map(([axis, ranks]) => `${axis} with GPU ${ranges(ranks.filter((rank) => rank !== gpu.rank))}`);
  return svg("g", {}, svg("rect", { x, y, width: w, height: h, rx: 6, fill: "none", stroke: "var(--faint)" }, title(`GPU ${gpu.rank}: ${held.peak}; ${groups.join("; ")}`)),
    svg("text", { x: x + 8, y: y + 18, "font-weight": 600 }, `GPU ${gpu.rank}`),
    Object.entries(gpu.place).map(([axis, at], line) => svg("text", { x: x + 8, y: y + 36 + 13 * line, class: "faint" }, `${axis} ${at}`)),
    svg("text", { x: x + w - 8, y: y + 18, "text-anchor": "end", class: "faint" }, held.peak), stack);
}

function traffic(answer) {
  if (!answer.traffic || !answer.traffic.length) return null;
  const names = Object.keys(answer.traffic[0]).filter((name) => name !== "axis");
  return element("section", {}, element("h2", {}, "Who talks how often, over which link"),
    element("div", { class: "scroll" }, element("table", {},
      element("thead", {}, element("tr", {}, element("th", {}, "axis"), names.map((name) => element("th", {}, name.replace(/_.*/, ""))))),
      element("tbody", {}, answer.traffic_text.map((row) => element("tr", {}, row.map((cell) => element("td", {}, cell))))))));
}
