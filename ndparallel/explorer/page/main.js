// The screens, and what leads from one to the other.

const SCREENS = { cut: ["Cut it", showCut], timeline: ["Timeline", showTimeline], ring: ["Ring", showRing], schedule: ["Schedule", showSchedule], cluster: ["Cluster", showCluster], predict: ["Predict first", showPredict] };

const SAME = ["cut", "timeline"]; // screens of one set-up

function tabs(current, setup) {
  const tab = ([name, [words]]) => element("button", { type: "button", id: `tab-${name}`, "aria-current": name === current ? "page" : null, onclick: () => go(name, SAME.includes(name) && SAME.includes(current) ? without(setup, "from", "to") : {}) }, words);
  document.getElementById("tabs").replaceChildren(...Object.entries(SCREENS).map(tab));
}

function go(screen, setup) {
  const next = address(screen, setup);
  if (next !== location.hash) history.pushState(null, "", next);
  show();
}

// The same without a step back to what was before.
function replaced(screen, setup) {
  history.replaceState(null, "", address(screen, setup));
  show();
}

function show() {
  const { screen, setup } = read();
  const name = SCREENS[screen] ? screen : "cut";
  if (name !== "cluster" && search) endSearch();
  keepFocus(() => tabs(name, setup));
  document.title = `${SCREENS[name][0]} · ndparallel explorer`;
  return SCREENS[name][1](document.getElementById("screen"), setup);
}

function showCommand(words) {
  document.getElementById("command").textContent = words;
  document.getElementById("computed").hidden = !words;
}

// What has the focus keeps it when its part of the page is drawn anew.
function keepFocus(draw) {
  const id = document.activeElement && document.activeElement.id;
  draw();
  const again = id && document.getElementById(id);
  if (again && again !== document.activeElement) again.focus({ preventScroll: true });
}

async function copy(words) {
  try {
    await navigator.clipboard.writeText(words);
    say("It is copied.");
  } catch {
    say("The browser does not let a page copy: mark the words and copy them yourself.");
  }
}

document.getElementById("copy").addEventListener("click", () => copy(document.getElementById("command").textContent));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { paint(); show(); });
addEventListener("popstate", show);
paint();
show();
