// "Schedule": all schedules on one scale of time, and one to place by hand.

const ACTIVITY = { F: "forward", B: "backward", I: "input", W: "weight" };
const OP_NAMES = { F: "forward", B: "full backward", I: "gradient of the input", W: "gradient of the weights" };

async function showSchedule(screen, setup) {
  const { mine, ...sizes } = setup;
  const answer = await answerFor("schedule", { ...typed(sizes), mine: mine || "" });
  if (!answer) return;
  put(
    screen,
    element(
      "div",
      { class: "columns" },
      form("schedule", answer.controls, setup, answer),
      element(
        "section",
        {},
        byHand(answer, setup),
        legend(["forward", "backward", "input", "weight", "idle"]),
        element("p", { class: "what" }, "A number is its microbatch; an underlined one is of a GPU's later chunk. Two in one frame run as one."),
        answer.schedules.map((each) => described(each, answer.seconds)),
        answer.reasons.map((words) => element("p", { class: "what" }, words)),
      ),
    ),
  );
}

function described(each, seconds) {
  const place = later([LISTS.width + 4, tallOf(each.rows)], () => lists(each.name, each.rows, seconds, each.pairs));
  return element(
    "section",
    {},
    element("h2", {}, each.name, element("span", { class: "after" }, ` ${each.text}`)),
    element("p", { class: "what" }, each.what),
    place,
  );
}

const LISTS = { left: 56, width: ON_PHONE ? 440 : 900, lane: 25, height: 22 }; // of a picture
const tallOf = (rows) => rows.length * LISTS.lane;

// One lane for every GPU, the number of the microbatch in every action; a later chunk has an underlined number, and
// pairs that run as one have a frame.
function lists(name, rows, seconds, pairs = []) {
  const { left, width } = LISTS,
    x = (second) => left + (second / seconds) * (width - left);
  const says = rows.map((actions, rank) => `GPU ${rank}: ${actions.map((action) => action[2] + action[3]).join(" ")}`).join("; ");
  return picture(
    name,
    width + 4,
    tallOf(rows),
    says,
    rows.map((actions, rank) => laneOfActions(actions, rank, x, pairs[rank] || [])),
  );
}

function laneOfActions(actions, rank, x, pairs) {
  const y = rank * LISTS.lane,
    { left, height } = LISTS,
    end = actions.length ? x(actions.at(-1)[1]) : left;
  return [
    textAt(`GPU ${rank}`, 0, y + 16),
    rectAt(left, y, end - left, height, { fill: colour("idle"), stroke: "var(--grid)" }),
    actions.map((action) => actionBox(action, pairOf(action, pairs), rank, x(action[0]), x(action[1]), y)),
    pairs.map(([from, to]) => rectAt(x(from), y, x(to) - x(from), height, { fill: "none", stroke: "var(--ink)", "stroke-width": 2 })),
  ];
}

// The pair that an action is half of.
const pairOf = ([start, stop], pairs) => pairs.find(([from, to]) => from <= start && stop <= to);

function actionBox([start, stop, op, microbatch, chunk, what], pair, rank, a, b, y) {
  const [from, to] = pair || [start, stop];
  const box = rectAt(a, y, b - a, LISTS.height, {
    fill: colour(ACTIVITY[op]),
    stroke: "var(--ground)",
    "stroke-width": 0.7,
    "data-says": `GPU ${rank}: ${what}, from ${from} to ${to} s${pair ? ", in a pair that runs as one" : ""}`,
  });
  if (b - a <= 9) return box;
  return [
    box,
    textAt(microbatch, (a + b) / 2, y + 16, {
      "text-anchor": "middle",
      fill: inkOn(ACTIVITY[op]),
      class: "mark",
      "text-decoration": chunk ? "underline" : null,
      "pointer-events": "none",
    }),
  ];
}

// Each GPU's next action: a button for every kind, and the reason where there is none.
function byHand({ mine, seconds }, setup) {
  const letters = mine.placed.split("|"),
    isBegun = letters.some((each) => each);
  const placed = (rank, change) =>
    go("schedule", { ...setup, mine: letters.map((each, at) => (at === rank ? change(each) : each)).join("|") });
  if (SAVED) return element("p", {}, element("code", {}, "ndparallel explore"), " opens a page on which you build a schedule of your own, action by action.");
  return element(
    "section",
    { class: "mine" },
    element("h2", {}, "Your own: beat 1F1B"),
    isBegun
      ? lists("yours", mine.rows, Math.max(seconds, ...mine.rows.flat().map((action) => action[1])))
      : element(
          "p",
          { class: "what" },
          "Place actions GPU by GPU: F takes the next microbatch forward, B back; I and W are the two halves of B.",
        ),
    letters.map((each, rank) => handOf(rank, each, mine, placed)),
    element("p", { role: "status" }, element("strong", {}, mine.verdict)),
    element("p", {}, hintButton(mine.hint), " ", isBegun ? button("clear", "clear", () => go("schedule", without(setup, "mine"))) : null),
  );
}

function handOf(rank, letters, mine, placed) {
  const place = ([op, reason]) =>
    button(`place-${rank}-${op}`, op, () => (reason ? say(`GPU ${rank}, ${op}: ${reason}.`) : placed(rank, (each) => each + op)), {
      class: reason ? "plain illegal" : "plain",
      "aria-disabled": String(Boolean(reason)),
      "aria-label": `GPU ${rank}: place ${OP_NAMES[op]}`,
      title: reason || OP_NAMES[op],
    });
  return element(
    "p",
    { class: "hand" },
    element("span", {}, `GPU ${rank}`),
    " ",
    Object.entries(mine.next[rank]).map(place),
    button(`back-${rank}`, "⌫", () => placed(rank, (each) => each.slice(0, -1)), {
      disabled: !letters,
      "aria-label": `GPU ${rank}: take the last one back`,
    }),
    " ",
    element("span", { class: "what" }, mine.waits[rank]),
  );
}

// What could come next: the words, and the focus on its button.
function hintButton(hint) {
  const tell = () => {
    say(hint.text);
    document.getElementById(`place-${hint.rank}-${hint.op}`).focus();
  };
  return button("hint", "give me a hint", tell, { disabled: !hint });
}
