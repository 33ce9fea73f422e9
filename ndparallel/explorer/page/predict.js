// "Predict first": a guess on a slider, and then the run. Guesses are in the address; NO_GUESS where the slider was not moved.

const NO_GUESS = "none";
const revealed = {}; // by question and guess: the answer
let revealing = Promise.resolve(); // one after another

async function showPredict(screen, setup) {
  const answer = await answerFor("predict", {});
  if (!answer) return;
  const titles = [...new Set(answer.cards.map((card) => card.chapter))];
  put(
    screen,
    ...titles.map((title) =>
      element(
        "section",
        {},
        element("h2", {}, `${title} `, element("small", {}, chapter(KNOWN.books[title]))),
        element(
          "div",
          { class: "cards" },
          answer.cards.filter((card) => card.chapter === title).map((card) => cardOf(card, setup)),
        ),
      ),
    ),
  );
}

function cardOf(card, setup) {
  const guessed = setup[card.name],
    answer = revealed[`${card.name} ${guessed}`];
  if (guessed !== undefined && !answer) reveal(card, guessed);
  return element(
    "article",
    { class: "card", id: `card-${card.name}` },
    element("p", { id: `words-${card.name}` }, marked(card.words)),
    card.guess ? element("p", { id: `guess-of-${card.name}` }, element("strong", {}, "To guess: "), marked(card.guess)) : null,
    guessed === undefined
      ? asking(card, setup)
      : !answer
        ? element("p", { class: "what" }, "running ", element("code", {}, card.command))
        : card.command || answer.error
          ? run(card, answer, setup)
          : element("p", { role: "status" }, marked(answer.why)),
  );
}

// The slider of a guess; what asks for a reason has none.
function asking(card, setup) {
  const guessed = (guess) => go("predict", { ...setup, [card.name]: guess });
  if (!card.command) return button(`show-${card.name}`, "unfold", () => guessed("asked"));
  const middle = card.low + Math.round((card.high - card.low) / 2 / card.step) * card.step;
  const output = element("output", { for: `guess-${card.name}` }, "your guess?");
  let guess = NO_GUESS;
  const take = ({ target: { value } }) => {
    guess = value;
    output.textContent = `${value}${["%", "x"].includes(card.unit) ? "" : " "}${card.unit}`;
  };
  const slider = element("input", {
    type: "range",
    id: `guess-${card.name}`,
    min: card.low,
    max: card.high,
    step: card.step,
    value: middle,
    "aria-labelledby": `words-${card.name} guess-of-${card.name}`,
    oninput: take,
    onpointerup: take, // also where it was put down where it stood
  });
  const [low, high] = card.ends.map((end) => element("span", { class: "what" }, end));
  return [element("p", { class: "slide" }, low, slider, high, output), button(`show-${card.name}`, "see the run", () => guessed(guess))];
}

// `commands` and *names* of a question.
function marked(words) {
  const tags = { "`": "code", "*": "em" };
  return words.split(/(`[^`]+`|\*[^*]+\*)/).map((each) => (tags[each[0]] ? element(tags[each[0]], {}, each.slice(1, -1)) : each));
}

function reveal(card, guess) {
  const key = `${card.name} ${guess}`;
  revealing = revealing.then(async () => {
    if (revealed[key]) return;
    const number = guess === NO_GUESS ? {} : { guess: Number(guess) };
    const answer = await ask("predict", { question: card.name, ...number }, false);
    if (!answer) return;
    revealed[key] = answer;
    const { screen, setup } = read();
    const place = document.getElementById(`card-${card.name}`);
    if (screen === "predict" && setup[card.name] === guess && place) keepFocus(() => place.replaceWith(cardOf(card, setup)));
  });
}

function run(card, answer, setup) {
  if (answer.error) return element("p", { class: "reason" }, answer.error);
  return element(
    "div",
    { role: "status" },
    scale(card, answer),
    element("p", {}, element("strong", {}, answer.text), `. ${answer.off} `, marked(answer.why)),
    element("details", {}, element("summary", {}, element("code", {}, card.command)), element("pre", { tabindex: 0 }, answer.output)),
    element(
      "p",
      {},
      button(`copy-${card.name}`, "copy the command", () => copy(card.command)),
      " ",
      button(`again-${card.name}`, "guess again", () => go("predict", without(setup, card.name))),
      " ",
      card.shown ? element("a", { href: `#${card.shown}` }, "see it on the page") : null,
    ),
  );
}

// The guess and the answer on one scale.
function scale(card, answer) {
  const width = 400,
    guessed = answer.guess !== undefined,
    x = (value) => 10 + ((Math.min(Math.max(value, card.low), card.high) - card.low) / (card.high - card.low)) * (width - 20);
  return svg(
    "svg",
    { viewBox: `0 0 ${width} 58`, role: "img", "aria-label": `${answer.text}${guessed ? `; guessed ${answer.guess}` : ""}` },
    lineAt(10, 30, width - 10, 30, { stroke: "var(--faint)" }),
    textAt(card.ends[0], 10, 52, { class: "faint" }),
    textAt(card.ends[1], width - 10, 52, { class: "faint", "text-anchor": "end" }),
    guessed ? guessMark(x(answer.guess), x(answer.value)) : null,
    svg("path", { d: `M${x(answer.value)},23l7,7l-7,7l-7,-7z`, fill: colour("backward"), "data-says": "the run" }),
    textAt(`the run: ${answer.text}`, x(answer.value), 15, { "text-anchor": x(answer.value) > width / 2 ? "end" : "start" }),
  );
}

// The guess, and how far it is from the run.
function guessMark(guess, value) {
  return [
    lineAt(guess, 30, value, 30, { stroke: colour("waiting"), "stroke-width": 4 }),
    svg("circle", { cx: guess, cy: 30, r: 7, fill: "var(--ground)", stroke: "var(--ink)", "stroke-width": 2, "data-says": "your guess" }),
  ];
}
