// The screens, and what leads from one to the other.

const SCREENS = { cut: ["Cut it", showCut], timeline: ["Timeline", showTimeline], ring: ["Ring", showRing], schedule: ["Schedule", showSchedule], cluster: ["Cluster", showCluster], predict: ["Predict first", showPredict] };

const isSameSetup = (one, other) => one === other || [one, other].every((screen) => ["cut", "timeline"].includes(screen));

function tabs(current, setup) {
  const open = (name) => go(name, isSameSetup(name, current) ? without(setup, "from", "to") : {});
  const tab = ([name, [words]]) => element("button", { type: "button", id: `tab-${name}`, "aria-current": name === current ? "page" : null, onclick: () => open(name) }, words);
  document.getElementById("tabs").replaceChildren(...Object.entries(SCREENS).map(tab));
}

function go(screen, setup, pin) {
  const next = address(screen, setup, pin);
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
  if (!Object.hasOwn(SCREENS, screen)) return beginAgain(`There is no screen "${screen}".`);
  if (screen !== "cluster" && search) endSearch();
  keepFocus(() => tabs(screen, setup));
  document.title = `${SCREENS[screen][0]} · ndparallel explorer`;
  return SCREENS[screen][1](document.getElementById("screen"), setup);
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
document.getElementById("copy-link").addEventListener("click", () => copy(location.href));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { paint(); show(); });
addEventListener("popstate", show);
paint();
show();
