// The state of the page is its address: a link or a bookmark restores it. Questions go to Python, and only the answer
// to the newest question of a screen is ever shown.

const asked = {}; // by screen: how many questions
const kept = new Map(); // by screen and question: its answer, the latest of them
const MOST_KEPT = 40;

// Which screen is shown, what is set there, and the set-up that is pinned beside it, in the words of an address.
function read() {
  const [screen, words] = location.hash.slice(1).split("?");
  const { pin, ...setup } = setupOf(words);
  return { screen: screen || "cut", setup, pin };
}

const setupOf = (words) => Object.fromEntries(new URLSearchParams(words || ""));

// The address of a set-up; what is pinned stays so on all screens of one set-up.
function address(screen, setup, pin = pinFor(screen)) {
  const words = new URLSearchParams(pin ? { ...setup, pin } : setup).toString();
  return `#${screen}${words ? `?${words}` : ""}`;
}

function pinFor(screen) {
  const now = read();
  return isSameSetup(screen, now.screen) ? now.pin : "";
}

// Values are words in an address; Python wants them as its stops have them.
function typed(setup) {
  const value = (words) => (/^-?\d+(\.\d+)?$/.test(words) ? Number(words) : words);
  return Object.fromEntries(Object.entries(setup).map(([name, words]) => [name, value(words)]));
}

function without(setup, ...names) {
  return Object.fromEntries(Object.entries(setup).filter(([name]) => !names.includes(name)));
}

// The answer to a question, or null where a newer one has been asked meanwhile. Unless it is `shown`, the page waits
// for nothing.
async function ask(screen, question, shown = true) {
  const number = (asked[screen] = (asked[screen] || 0) + 1);
  const busy = (is) => shown && document.getElementById("screen").classList.toggle("busy", is);
  busy(true);
  try {
    const answer = await answerTo(screen, question);
    return number === asked[screen] && !answer.superseded ? answer : null;
  } catch {
    return number === asked[screen]
      ? { error: "The server does not answer any more: start `ndparallel explore` again.", lost: true }
      : null;
  } finally {
    if (number === asked[screen]) busy(false);
  }
}

// What has been answered before is known; how far a search is, is another thing each time.
async function answerTo(screen, question) {
  const words = `${screen} ${JSON.stringify(question)}`;
  if (kept.has(words)) return kept.get(words);
  const answer = await (SAVED ? askInside : askServer)(screen, question);
  if (screen !== "find" && !answer.error && !answer.superseded) kept.set(words, answer);
  if (kept.size > MOST_KEPT) kept.delete(kept.keys().next().value);
  return answer;
}

async function askServer(screen, question) {
  const reply = await fetch(`/${screen}`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(question),
  });
  return reply.json();
}

// The answer that a screen is drawn from, or null where there is none. What the address says and nobody knows gives the
// page as it begins, with a sentence.
async function answerFor(name, question) {
  const answer = await ask(name, question),
    pin = read().pin;
  if (!answer) return null;
  if (answer.error) return answer.lost || !location.hash.includes("?") ? fail(answer.error) : beginAgain(answer.error);
  const other = pin ? await ask(name, typed(setupOf(pin))) : {};
  if (!other) return null;
  say(answer.reason);
  showCommand(answer.command);
  return { ...answer, pinned: other.row && other.command !== answer.command ? other : null };
}

async function beginAgain(reason) {
  const { screen } = read();
  history.replaceState(null, "", address(Object.hasOwn(SCREENS, screen) ? screen : "cut", {}, ""));
  await show();
  say(`${reason} So this is what the page begins with.`);
  return null;
}

// Where there is no answer, no older one stays on the page.
function fail(words) {
  say(words);
  showCommand("");
  put(
    document.getElementById("screen"),
    element("p", { class: "reason" }, words),
    element("a", { href: `#${read().screen}` }, "begin again"),
  );
  return null;
}

// What is said, with what can be done about it.
function sayMore(words, buttons) {
  if (document.getElementById("said").textContent === words)
    document.getElementById("said").append(...buttons.flatMap((each) => [" ", each]));
}

function say(words) {
  document.getElementById("said").textContent = words || "";
}
