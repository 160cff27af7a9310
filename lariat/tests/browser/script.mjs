// What a person does with the page, in a real browser. Asks on stdout for what is to happen elsewhere
// (a link, the end of a server), hears on stdin when it has, and ends with `done`.
import assert from "node:assert/strict";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const [packages, executablePath, address, pictures] = process.argv.slice(2);
const { chromium } = createRequire(`${packages}/`)("playwright-core");
const answers = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const order = async (text) => {
  console.log(text);
  return (await answers.next()).value;
};

// How soon the end of a session is to be seen.
const SOON = 1000;
const rows = "tr.server";

const browser = await chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-gpu"] });
const complaints = [];
async function visit(options) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, ...options });
  const page = await context.newPage();
  page.on("pageerror", (error) => complaints.push(error.message));
  page.on("console", (message) => message.type() === "error" && complaints.push(message.text()));
  return page;
}
const row = (page, name) => page.locator(rows, { has: page.getByText(name, { exact: true }) });
const gone = (page, name) => row(page, name).waitFor({ state: "detached", timeout: 10 * SOON });

// Without a key there is only the way to one.
const stranger = await visit();
const refused = await stranger.goto(`http://${address}/`);
assert.equal(refused.status(), 401);
assert.match(await stranger.textContent("h1"), /lariat open/);
complaints.length = 0; // the browser complains of the 401 itself
await stranger.context().close();

// A link lets this browser in, once.
const page = await visit();
const link = await order("link");
await page.goto(link);
await page.waitForURL(`http://${address}/`);
await page.locator(rows).nth(49).waitFor();
assert.equal(await page.locator(rows).count(), 50);
assert.equal(await page.textContent("#f-servers"), "50");
assert.equal(await page.textContent("#f-processes"), "60");
assert.equal(await page.textContent("#link b"), "live");
assert.deepEqual(await page.context().cookies().then((all) => all.map((c) => [c.httpOnly, c.sameSite, c.expires])), [[true, "Strict", -1]]);
const other = await visit();
assert.equal((await other.goto(link)).status(), 401);
complaints.length = 0;
await other.context().close();

// What ends elsewhere is seen within a second.
const vanish = gone(page, "server-07");
await order("end 7");
const ended = Date.now();
await vanish;
const seen = Date.now() - ended;
console.log(`seen after ${seen} ms`);
assert.ok(seen < SOON, `seen only after ${seen} ms`);
await page.locator("#receipts").getByText("server-07").waitFor();

// By mouse: processes, a question that can be answered with no, and the end.
await row(page, "server-10").getByRole("button", { name: "Processes" }).click();
await page.locator("tr.more:visible").getByText("sleep", { exact: true }).waitFor();
await row(page, "server-10").getByRole("button", { name: "End" }).click();
await page.getByRole("dialog").getByText("2 processes are asked to leave").waitFor();
await page.getByRole("button", { name: "Keep it" }).click();
assert.equal(await row(page, "server-10").count(), 1);
await row(page, "server-10").getByRole("button", { name: "End" }).click();
await page.getByRole("button", { name: "End it" }).click();
await gone(page, "server-10");
const receipt = page.locator("#receipts tr", { hasText: "server-10" });
await receipt.getByText("signal:TERM").waitFor();
await receipt.getByText("nothing").waitFor();

// By keyboard alone: filter, row, processes, end.
await page.keyboard.press("/");
await page.keyboard.type("server-2");
await page.waitForFunction(() => document.querySelectorAll("tr.server").length === 10);
await page.keyboard.press("Enter");
await page.keyboard.press("j");
await page.keyboard.press("Enter");
const focused = await page.evaluate(() => document.activeElement.querySelector("bdi").textContent);
assert.equal(focused, "server-21");
assert.equal(await page.locator("tr.more:visible").count(), 1);
await page.keyboard.press("e");
assert.equal(await page.evaluate(() => document.activeElement.textContent), "Keep it");
await page.keyboard.press("Escape");
assert.equal(await page.evaluate(() => document.activeElement.querySelector("bdi").textContent), "server-21");
await page.keyboard.press("e");
await page.keyboard.press("Tab");
await page.keyboard.press("Enter");
await gone(page, "server-21");
await page.locator("#receipts").getByText("server-21").waitFor();
await page.keyboard.press("/");
await page.keyboard.press("Escape");
await page.waitForFunction(() => document.querySelectorAll("tr.server").length === 47);
assert.deepEqual(complaints, []);

// Another page of this machine may neither read nor end anything, although the cookie goes with it.
const elsewhere = createServer((_, answer) => answer.setHeader("Content-Type", "text/html").end("<p>elsewhere")).listen(0, "127.0.0.1");
await new Promise((listening) => elsewhere.once("listening", listening));
const foreign = await page.context().newPage();
await foreign.goto(`http://127.0.0.1:${elsewhere.address().port}/`);
// What is refused is hidden from the page that asked; the browser's own tools see the status.
const [received, asked] = [[], new Map()];
const tools = await page.context().newCDPSession(foreign);
tools.on("Network.requestWillBeSent", ({ requestId, request }) => asked.set(requestId, request.url));
tools.on("Network.responseReceivedExtraInfo", ({ requestId, statusCode }) => received.push([requestId, statusCode]));
await tools.send("Network.enable");
const heard = await foreign.evaluate(async (to) => {
  const tries = [
    fetch(`${to}/metrics`, { credentials: "include" }),
    fetch(`${to}/v1/page/end`, { method: "POST", credentials: "include", headers: { "Lariat-Page": "1" }, body: "{}" }),
    fetch(`${to}/metrics`, { credentials: "include", mode: "no-cors" }).then((answer) => { throw new Error(answer.type); }),
  ];
  return (await Promise.allSettled(tries)).map((one) => one.status);
}, `http://${address}`);
assert.deepEqual(heard, ["rejected", "rejected", "rejected"]);
// What the page began before that, its icon perhaps, it asked its own server.
const statuses = received.filter(([id]) => asked.get(id)?.startsWith(`http://${address}/`)).map(([, status]) => status);
assert.deepEqual(statuses, [403, 403, 403]);
await foreign.close();
elsewhere.close();

// It fits on small screens, in both colours.
for (const [width, height] of [[1600, 900], [1280, 900], [400, 860], [360, 740]]) {
  for (const colorScheme of ["light", "dark"]) {
    if (!pictures && colorScheme === "dark") continue;
    await page.setViewportSize({ width, height });
    await page.emulateMedia({ colorScheme });
    await page.evaluate(() => scrollTo(0, 0));
    const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    assert.ok(wide <= 0, `${wide} px too wide at ${width}`);
    if (pictures && [1280, 400].includes(width)) {
      await page.screenshot({ path: `${pictures}/page-${width}-${colorScheme}.png` });
    }
  }
}
await browser.close();
console.log("done");
process.exit(0);
