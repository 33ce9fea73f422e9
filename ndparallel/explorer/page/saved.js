// A page that was saved has its answers inside, and asks nobody. What it has no answer for is grey.

const SAVED = document.getElementById("saved");
const NOT_SAVED = "This page holds no run of that; the command ndparallel explore opens one that has them all.";
let opened = null; // a promise of what is inside

async function open_() {
  const bytes = Uint8Array.from(atob(SAVED.textContent), (letter) => letter.charCodeAt(0));
  const { pool, answers } = await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
  const at = (value) => (value && typeof value === "object" && "$" in value ? pool[value.$] : value);
  const unfolded = (value) => {
    const found = at(value);
    if (Array.isArray(found)) return found.map(unfolded);
    if (found && found["|"]) {
      const columns = unfolded(found["|"]);
      return columns[0].map((_, row) => columns.map((column) => column[row]));
    }
    if (found === null || typeof found !== "object") return found;
    return Object.fromEntries(Object.entries(found).map(([name, each]) => [name, unfolded(each)]));
  };
  return { at, unfolded, part: (name) => at(at(answers)[name]) };
}

async function askInside(screen, question) {
  const inside = await (opened ??= open_());
  if (screen === "find") return { error: NOT_SAVED };
  if (screen === "predict") return inside.unfolded(question.question ? guessed(inside, question) : inside.part("predict")[""]);
  const settings = inside.unfolded(inside.part("settings"))[screen],
    answers = inside.part(screen);
  const key = (setup) => settings.map(([name, begin]) => setup[name] ?? begin).join(" ");
  const { mine, config, ...setup } = question;
  const found = !mine && !config && answers[key(setup)];
  if (!found) return { error: NOT_SAVED };
  const answer = inside.unfolded(found);
  if (answer.controls)
    answer.controls = answer.controls.map((control, at) =>
      onlySaved(control, settings[at]?.[2] || [], (value) => answers[key({ ...setup, [control.name]: value })]),
    );
  return screen === "cluster" ? { ...answer, found: inside.unfolded(inside.part("found")) } : answer;
}

// A control with those stops that there is an answer for; where any number might be set, a list of those that are there.
function onlySaved(control, numbers, there) {
  const stops = control.kind === "number" ? numbers.map((value) => ({ value, reason: "" })) : control.stops;
  const kept = stops.map((stop) => (there(stop.value) ? stop : { ...stop, reason: stop.reason || NOT_SAVED, absent: !stop.reason }));
  return { ...control, kind: control.kind === "number" ? "words" : control.kind, stops: kept };
}

function guessed(inside, { question, guess }) {
  const answer = inside.unfolded(inside.part("guesses")[question]),
    card = inside.unfolded(inside.part("predict")[""]).cards.find(({ name }) => name === question);
  if (!card.command) return answer;
  return { ...answer, guess, off: answer.off[Math.round((guess - card.low) / card.step)] || "" };
}
