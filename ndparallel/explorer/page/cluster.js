// "Cluster": one plan of a real model on real GPUs; what would change it, and the plans that a search finds.

const MOST_CONFIG = 20_000; // characters: the address holds them
const found = {}; // by the search's command: what it found
let search = null; // the one that runs: its command, and how far it is

async function showCluster(screen, setup) {
  const { config, ...values } = setup;
  const answer = await answerFor("cluster", { ...typed(values), ...(config ? { config } : {}) });
  if (!answer) return;
  if (answer.found) found[answer.found.command] = answer.found;
  if (search && search.command !== answer.search) endSearch();
  const right = answer.row
    ? element("section", { "aria-label": "one training step" }, prediction(answer))
    : reasonWhy("cluster", setup, answer);
  put(
    screen,
    element(
      "div",
      { class: "columns" },
      form("cluster", answer.controls, setup, answer, SAVED ? null : drop(setup)),
      element(
        "section",
        {},
        right,
        element("section", { id: "plans", "aria-label": "the search" }),
        answer.row ? launchScripts(answer) : null,
      ),
    ),
  );
  showPlans(answer.search, setup);
}

function prediction(answer) {
  const change = answer.what_if ? element("p", { class: "reason" }, `what if ${answer.what_if.text}`) : null;
  return [
    element("p", {}, answer.headline),
    numbers(
      answer,
      Object.keys(answer.cells).map((name) => [name, name]),
    ),
    change,
    element(
      "div",
      { class: "boards" },
      element("section", {}, element("h2", {}, "Where the step goes"), stepBars(answer)),
      element(
        "section",
        {},
        element("h2", {}, "What a GPU of each pipeline rank holds"),
        memoryBars(answer.memory),
        legend(answer.memory.kinds.map((kind) => `memory ${kind}`)),
      ),
    ),
    answer.remarks.map((words) => element("p", {}, words)),
    element("section", {}, element("h2", {}, answer.timeline.name[0].toUpperCase() + answer.timeline.name.slice(1)), laterTimeline(answer, { height: 16 }), activities(answer)),
  ];
}

// A bar for every pipeline rank, against what the GPU has.
function memoryBars({ ranks, kinds, limit, limit_bytes }) {
  const { left, width } = BARS,
    tall = Math.min(30, 120 / ranks.length + 12),
    end = ranks.length * tall + 16;
  const most = Math.max(limit_bytes, ...ranks.map((rank) => sum(rank.by_kind))),
    x = (bytes) => left + (bytes / most) * (width - left - 70);
  const says = ranks.map(({ rank, total, text }) => `pipeline rank ${rank} holds ${total}: ${text.join(", ")}`);
  const bar = ({ rank, by_kind, total, text }, at) => {
    const all = sum(by_kind),
      y = at * tall + 14,
      middle = y + tall / 2;
    return svg(
      "g",
      { "data-says": text.join(", ") },
      textAt(`rank ${rank}`, 0, middle),
      memoryBar(by_kind, kinds, x, y, tall - 5),
      textAt(total, x(all) + 5, middle, { class: all > limit_bytes ? null : "faint" }),
    );
  };
  return picture(
    "memory",
    width,
    end + 4,
    says.join("; "),
    ranks.map(bar),
    lineAt(x(limit_bytes), 12, x(limit_bytes), end, { stroke: "var(--ink)", "stroke-dasharray": "4 3" }),
    textAt(`the GPU has ${limit}`, x(limit_bytes), 9, { "text-anchor": "end", class: "faint" }),
  );
}

function memoryBar(by_kind, kinds, x, y, height) {
  let below = 0;
  return by_kind.map((bytes, kind) => {
    below += bytes;
    return rectAt(x(below - bytes), y, x(below) - x(below - bytes), height, { fill: colour(`memory ${kinds[kind]}`) });
  });
}

const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);

// ------------------------------------------------------------------------------------------- a model of one's own

function drop(setup) {
  const input = element("input", {
    type: "file",
    id: "config",
    accept: ".json,application/json",
    onchange: (event) => readConfig(event.target.files[0], setup),
  });
  return element(
    "label",
    { class: "control" },
    element("span", { class: "what" }, "a model's config.json: choose it, or drop it on this page"),
    input,
  );
}

async function readConfig(file, setup) {
  if (!file) return;
  try {
    const config = JSON.stringify(JSON.parse(await file.text()));
    if (config.length > MOST_CONFIG) return say(`${file.name} has ${config.length} characters, and an address holds ${MOST_CONFIG}.`);
    go("cluster", { ...setup, config, model: "config.json" });
  } catch {
    say(`${file.name} is not JSON.`);
  }
}

addEventListener("dragover", (event) => event.preventDefault());
addEventListener("drop", (event) => {
  event.preventDefault();
  if (read().screen === "cluster") readConfig(event.dataTransfer.files[0], read().setup);
});

// ------------------------------------------------------------------------------------------------- the search

async function beginSearch(command, { config, ...setup }) {
  search = { command, running: "starting", share: null };
  showPlans(command, setup);
  const first = await ask("find", { do: "begin", ...typed(setup), ...(config ? { config } : {}) }, false);
  lookAgain(command, first, setup);
}

async function lookAgain(command, answer, setup) {
  if (!answer || search?.command !== command) return;
  if ("running" in answer) {
    search = { command, ...answer };
    setTimeout(async () => {
      if (search?.command === command) lookAgain(command, await ask("find", { do: "look" }, false), setup);
    }, 250);
  } else {
    search = null;
    found[command] = answer;
  }
  showPlans(command, read().setup);
}

function endSearch() {
  search = null;
  ask("find", { do: "end" }, false);
}

function showPlans(command, setup) {
  const place = document.getElementById("plans");
  if (!place) return;
  put(place, element("h2", {}, "The best plans for this job"), plans(command, setup));
}

function plans(command, setup) {
  if (search?.command === command) {
    const bar = element("progress", { "aria-label": "the search", ...(search.share == null ? {} : { value: search.share, max: 1 }) });
    return [
      element("p", {}, bar, " ", search.running),
      button("end-search", "end the search", () => {
        endSearch();
        showPlans(command, setup);
      }),
    ];
  }
  const begin = SAVED
    ? element("p", { class: "what" }, NOT_SAVED)
    : button("search", "search all legal plans", () => beginSearch(command, read().setup));
  const answer = found[command];
  if (!answer) return [begin];
  if (!answer.plans) return [element("p", { class: "reason" }, answer.reason || answer.error), begin];
  return [
    answer.advice.map((words) => element("p", {}, words)),
    planTable(answer.plans, setup),
    element("p", { class: "what" }, answer.certainty),
    element("p", { class: "what" }, "The same from ", element("code", {}, answer.command)),
  ];
}

function planTable(rows, setup) {
  const names = Object.keys(rows[0].cells);
  const line = ({ plan, cells, setup: values, remark }, at) => [
    element("td", {}, plan, remark ? element("strong", {}, ` (${remark})`) : null),
    ...names.map((name) => cells[name]),
    element(
      "td",
      {},
      button(`plan-${at}`, "show", () => go("cluster", { ...setup, ...values }), { "aria-label": `show ${plan}` }),
    ),
  ];
  return table(["plan", ...names, element("td")], rows.map(line));
}

// ---------------------------------------------------------------------------------------------- launch scripts

function launchScripts(answer) {
  const script = ([name, { title: words, command, text, reason }]) =>
    element(
      "details",
      { id: `launch-${name}` },
      element("summary", {}, words),
      reason
        ? element("p", { class: "reason" }, reason)
        : [
            element("p", {}, element("code", {}, command)),
            element("pre", { tabindex: 0 }, text),
            button(`copy-${name}`, "copy the script", () => copy(text)),
          ],
    );
  return element("section", {}, element("h2", {}, "Start it"), Object.entries(answer.launch).map(script));
}
