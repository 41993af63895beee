// Keeps the rows of the live page current: reads the events of its session while the page is visible, and says how old
// the rows are. It makes text only, never HTML.
"use strict";

const byId = (id) => document.getElementById(id);
const live = byId("live");
const [head, body] = [live.querySelector("thead tr"), live.querySelector("tbody")];
const SILENCE = 2000 * Number(live.dataset.heartbeat); // milliseconds without a byte after which a connection is lost
const LONGEST_PAUSE = 30; // seconds
const LASTING = 30000; // a connection that lasted so many milliseconds was a good one
const MARKED = 3000; // milliseconds for which new rows are marked
const SPEECH = 60000; // the least milliseconds between two announcements of new rows
// Seconds until a refused query is repeated that may succeed later, by its status. A query that took too long is dear.
const SLOW = { 403: 30, 404: 30, 409: 30, 504: 120 };

let connection = null; // the AbortController of the open connection
let heard = 0; // when its last byte came; this and `due` are by the clock that cannot be set
let due = 0; // when to connect next
let failures = 0; // connections in a row that did not last
let isSlow = false; // the server has refused the query: only time helps, not a new connection
let isOver = false; // nothing helps but the user
let isCurrent = false; // the server has confirmed the rows over the open connection
let doing = "Connecting.";
let known = null; // the rows of the last event
let asOf = body.rows.length ? performance.timeOrigin : null; // when the rows came; this and the next ones by the wall
let confirmed = asOf;
let marked = 0;
let spoken = 0;
let last = { wall: Date.now(), steady: performance.now() };

function say(id, text) {
  if (byId(id).textContent !== text) byId(id).textContent = text;
}

function cell(tag, text, isNumber) {
  const made = document.createElement(tag);
  if (tag === "th") made.scope = "col";
  if (isNumber) made.className = "number";
  if (text === null) {
    made.append(document.createElement("span"));
    made.firstChild.className = "null";
  }
  (made.firstChild ?? made).textContent = text ?? "null";
  return made;
}

function replaceRows({ columns, rows }) {
  const texts = rows.map((cells) => JSON.stringify(cells));
  head.replaceChildren(...columns.map((column) => cell("th", column.name, column.number)));
  body.replaceChildren(...rows.map((cells, rank) => {
    const row = document.createElement("tr");
    if (known && !known.has(texts[rank])) row.className = "new";
    row.append(...cells.map((text, index) => cell("td", text, columns[index].number)));
    return row;
  }));
  known = new Set(texts);
  asOf = marked = Date.now();
}

function take(block) {
  const fields = Object.fromEntries(block.split("\n").map((line) => line.split(/: ?(.*)/s)));
  if (!("data" in fields)) return null;
  const data = JSON.parse(fields.data);
  if (fields.event === "problem") return data;
  isCurrent = fields.event !== "away";
  doing = isCurrent ? "" : "The server does not answer.";
  if (!fields.event) replaceRows(data);
  if (isCurrent) confirmed = Date.now();
  say("problem", "");
  show();
  return null;
}

async function read(reader, mine) {
  for (let rest = ""; ;) {
    const { done, value } = await reader.read();
    if (done || connection !== mine) return null;
    heard = performance.now();
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const problem = take(block);
      if (problem) return problem;
    }
  }
}

async function connect() {
  const mine = new AbortController();
  const began = performance.now();
  connection = mine;
  heard = began;
  isSlow = false;
  let problem = null;
  try {
    const answer = await fetch(live.dataset.events, { signal: mine.signal, cache: "no-store", redirect: "error" });
    problem = await (answer.ok ? read(answer.body.pipeThrough(new TextDecoderStream()).getReader(), mine) : answer.json());
  } catch {
    // The network, or an answer that is not of the gateway: as an end without a reason.
  }
  if (connection !== mine) return;
  close();
  failures = performance.now() - began > LASTING ? 0 : failures + 1;
  settle(problem);
}

function settle(problem) {
  const { status = 0, reason, detail = "", retry_after: least = 0 } = problem ?? {};
  const hasEnded = reason === "SESSION_ENDED";
  isSlow = status in SLOW;
  isOver = hasEnded || (status >= 400 && status < 500 && !isSlow && ![401, 429].includes(status));
  const pause = isSlow ? SLOW[status] : Math.min(LONGEST_PAUSE, 2 ** failures) * (0.5 + Math.random() / 2);
  due = performance.now() + 1000 * Math.max(pause, least);
  if (isOver) doing = hasEnded ? "" : "Change the query, or load the page again.";
  byId("login").hidden = !hasEnded;
  say("problem", hasEnded ? "Your session has ended: log in." : detail);
  show();
}

function close() {
  const mine = connection;
  connection = null;
  isCurrent = false;
  doing = "Reconnecting.";
  mine?.abort();
}

function ago(instant) {
  const seconds = Math.max(0, Math.round((Date.now() - instant) / 1000));
  if (seconds < 120) return `${seconds} s`;
  return seconds < 7200 ? `${Math.floor(seconds / 60)} min` : `${Math.floor(seconds / 3600)} h`;
}

function clock(instant) {
  const [then, now] = [new Date(instant), new Date()];
  return then.toDateString() === now.toDateString() ? then.toLocaleTimeString("en-GB") : then.toLocaleString("en-GB");
}

function show() {
  const isStale = !isCurrent || performance.now() - heard > SILENCE;
  const time = clock(asOf);
  const wait = connection ? 0 : Math.ceil((due - performance.now()) / 1000);
  const next = isOver || wait <= 0 ? doing : `Trying again in ${wait} s.`;
  live.classList.toggle("stale", isStale);
  say("stale", isStale ? "Not current" : "");
  const age = isStale ? `not confirmed for ${ago(confirmed)}. ${next}` : `confirmed ${ago(confirmed)} ago.`;
  say("age", asOf === null ? `No rows yet. ${next}` : `As of ${time}, ${age}`);
  if (marked && Date.now() - marked > MARKED) {
    for (const row of body.rows) row.classList.remove("new");
    marked = 0;
  }
  if (!isStale && asOf > spoken && Date.now() - spoken > SPEECH) {
    spoken = Date.now();
    say("spoken", `Updated at ${time}`);
  }
}

function hurry() {
  if (!isSlow) due = 0;
  tick();
}

function tick() {
  const now = { wall: Date.now(), steady: performance.now() };
  const jump = now.wall - last.wall - (now.steady - last.steady);
  // A clock that was set back must not make rows younger.
  if (jump < -5000 && asOf !== null) [asOf, confirmed] = [asOf + jump, confirmed + jump];
  // A machine that has slept does not know that its connections are gone.
  const hasSlept = Math.abs(jump) > 5000 || now.steady - last.steady > 10000;
  last = now;
  if (connection && (hasSlept || document.hidden || now.steady - heard > SILENCE)) {
    close();
    due = 0;
  }
  if (!connection && !document.hidden && !isOver && now.steady >= due) connect();
  show();
}

// A hidden page has no connection: browsers allow six for each host, and other pages need them.
document.addEventListener("visibilitychange", hurry);
window.addEventListener("online", () => {
  if (connection) close(); // it is older than the network
  hurry();
});
// A query that has failed while the page was made is not repeated at once.
if (live.dataset.status !== "200") settle({ status: Number(live.dataset.status), detail: byId("problem").textContent });
setInterval(tick, 1000);
tick();
