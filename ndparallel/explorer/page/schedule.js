// "Schedule": all schedules on one scale of time, and one to place by hand.

const ACTIVITY = { F: "forward", B: "backward", I: "backward", W: "weight" };
const OP_NAMES = { F: "forward", B: "full backward", I: "gradient of the input", W: "gradient of the weights" };

async function showSchedule(screen, setup) {
  const { mine, ...sizes } = setup;
  const answer = await answerFor("schedule", { ...typed(sizes), mine: mine || "" });
  if (!answer) return;
  put(screen, element("div", { class: "columns" },
    controls("schedule", answer.knobs, setup, answer),
    element("section", {}, byHand(answer, setup), legend(["forward", "backward", "weight", "idle"]), answer.schedules.map((each) => described(each, answer.seconds)), answer.reasons.map((words) => element("p", { class: "what" }, words)))));
}

function described(each, seconds) {
  const picture = later([LISTS.width + 4, tallOf(each.rows)], () => lists(each.name, each.rows, seconds));
  return element("section", {}, element("h2", {}, each.name, element("span", { class: "after" }, ` ${each.text}`)), element("p", { class: "what" }, each.what), picture);
}

const LISTS = { left: 56, width: 1100, lane: 25, height: 22 }; // of a picture
const tallOf = (rows) => rows.length * LISTS.lane;

// One lane for every GPU, the number of the microbatch in every action; a later chunk has an underlined number.
function lists(name, rows, seconds) {
  const { left, width } = LISTS, x = (second) => left + (second / seconds) * (width - left);
  const picture = svg("svg", { viewBox: `0 0 ${width + 4} ${tallOf(rows)}`, role: "img", "aria-label": rows.map((actions, rank) => `GPU ${rank}: ${actions.map((action) => action[2] + action[3]).join(" ")}`).join("; ") },
    rows.map((actions, rank) => laneOfActions(actions, rank, x)));
  return element("div", { class: "scroll" }, savable(name, picture));
}

function laneOfActions(actions, rank, x) {
  const y = rank * LISTS.lane, { left, height } = LISTS, end = actions.length ? x(actions.at(-1)[1]) : left;
  return [svg("text", { x: 0, y: y + 16 }, `GPU ${rank}`), svg("rect", { x: left, y, width: end - left, height, fill: colour("idle"), stroke: "var(--grid)" }),
    actions.map((action) => actionBox(action, rank, x(action[0]), x(action[1]), y))];
}

function actionBox([start, stop, op, microbatch, chunk, what], rank, a, b, y) {
  const box = svg("rect", { x: a, y, width: b - a, height: LISTS.height, fill: colour(ACTIVITY[op]), stroke: "var(--ground)", "stroke-width": 0.7, "data-says": `GPU ${rank}: ${what}, from ${start} to ${stop} s` });
  if (b - a <= 9) return box;
  return [box, svg("text", { x: (a + b) / 2, y: y + 16, "text-anchor": "middle", fill: inkOn(ACTIVITY[op]), class: "mark", "text-decoration": chunk ? "underline" : null, "pointer-events": "none" }, microbatch)];
}

// Each GPU's next action: a button for every kind, and the reason where there is none.
function byHand(answer, setup) {
  const { placed, rows, waits, next, verdict } = answer.mine;
  const letters = placed.split("|");
  const place = (rank, op) => go("schedule", { ...setup, mine: letters.map((each, at) => (at === rank ? each + op : each)).join("|") });
  const takeBack = (rank) => go("schedule", { ...setup, mine: letters.map((each, at) => (at === rank ? each.slice(0, -1) : each)).join("|") });
  const buttons = letters.map((each, rank) => element("p", { class: "hand" }, element("span", {}, `GPU ${rank}`), " ",
    Object.entries(next[rank]).map(([op, reason]) => element("button", { type: "button", class: reason ? "plain illegal" : "plain", id: `place-${rank}-${op}`, "aria-disabled": String(Boolean(reason)), "aria-label": `GPU ${rank}: place ${OP_NAMES[op]}`, title: reason || OP_NAMES[op], onclick: () => (reason ? say(`GPU ${rank}, ${op}: ${reason}.`) : place(rank, op)) }, op)),
    element("button", { type: "button", class: "plain", id: `back-${rank}`, disabled: !each, "aria-label": `GPU ${rank}: take the last one back`, onclick: () => takeBack(rank) }, "⌫"), " ",
    element("span", { class: "what" }, waits[rank])));
  const begun = letters.some((each) => each);
  return element("section", { class: "mine" }, element("h2", {}, "Your own: beat 1F1B"),
    begun ? lists("yours", rows, answer.seconds) : element("p", { class: "what" }, "Place actions GPU by GPU: F takes the next microbatch forward, B back; I and W are the two halves of B."),
    buttons, element("p", { role: "status" }, element("strong", {}, verdict)),
    begun ? element("button", { type: "button", class: "plain", id: "clear", onclick: () => go("schedule", without(setup, "mine")) }, "clear") : null);
}
