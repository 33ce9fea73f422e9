// The state of the page is its address: a link or a bookmark restores it. Questions go to Python, and only the answer
// to the newest question of a screen is ever shown.

const asked = {}, answered = {}; // by screen: how many questions, and the newest with its answer

function read() {
  const [screen, words] = location.hash.slice(1).split("?");
  return { screen: screen || "cut", setup: Object.fromEntries(new URLSearchParams(words || "")) };
}

function address(screen, setup) {
  const words = new URLSearchParams(setup).toString();
  return `#${screen}${words ? `?${words}` : ""}`;
}

// Values are words in an address; Python wants them as its stops have them.
function typed(setup) {
  const value = (words) => (/^-?\d+(\.\d+)?$/.test(words) ? Number(words) : words);
  return Object.fromEntries(Object.entries(setup).map(([name, words]) => [name, value(words)]));
}

// The answer to a question, or null where a newer one has been asked meanwhile. Unless it is `shown`, the page waits
// for nothing.
async function ask(screen, question, shown = true) {
  const number = (asked[screen] = (asked[screen] || 0) + 1);
  const busy = (is) => shown && document.getElementById("screen").classList.toggle("busy", is);
  busy(true);
  try {
    const words = JSON.stringify(question);
    const answer = answered[screen]?.words === words ? answered[screen].answer : await (SAVED ? askInside : askServer)(screen, question);
    if (number !== asked[screen] || answer.superseded) return null;
    if (shown && !answer.error) answered[screen] = { words, answer };
    return answer;
  } catch {
    if (number !== asked[screen]) return null;
    return { error: "The server does not answer any more: start `ndparallel explore` again." };
  } finally {
    if (number === asked[screen]) busy(false);
  }
}

async function askServer(screen, question) {
  const reply = await fetch(`/${screen}`, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(question) });
  return reply.json();
}

// Where there is no answer, no older one stays on the page.
function fail(screen, words) {
  say(words);
  showCommand("");
  screen.replaceChildren(element("p", { class: "reason" }, words), element("a", { href: `#${read().screen}` }, "begin again"));
}

// What is said, with what can be done about it.
function sayMore(words, buttons) {
  if (document.getElementById("said").textContent === words) document.getElementById("said").append(...buttons.flatMap((each) => [" ", each]));
}

function say(words) {
  document.getElementById("said").textContent = words || "";
}
