/** Waiting for real things: always for a condition, with a deadline, and with a name that the failure shows. */

/** Milliseconds of the test process's monotonic clock. */
export const nowMs = (): number => performance.now();

/** Lets real time pass. For tests in which time itself is the subject; to wait for something else use `until`. */
export async function letPass(durationMs: number): Promise<void> {
  await new Promise<void>((resolve) => {
    setTimeout(resolve, durationMs);
  });
}

/** Lets real time pass until the monotonic clock of this process shows `atMs` or more (a timer may fire a little early). */
export async function letPassUntil(atMs: number): Promise<void> {
  for (let leftMs = atMs - nowMs(); leftMs > 0; leftMs = atMs - nowMs()) await letPass(Math.ceil(leftMs));
}

type Falsy = false | null | undefined | 0 | "";

/** Asks again and again until the answer is truthy, and returns it. Throws after `withinMs`. */
export async function until<T>(what: string, ask: () => T | Promise<T>, withinMs = 20_000): Promise<Exclude<T, Falsy>> {
  const giveUpAtMs = nowMs() + withinMs;
  for (;;) {
    const answer = await ask();
    if (answer) return answer as Exclude<T, Falsy>;
    if (nowMs() > giveUpAtMs) throw new Error(`waited ${withinMs} ms in vain for ${what}`);
    await letPass(10);
  }
}

/** The promise's value, or an error that names `what` after `withinMs`. */
export async function within<T>(what: string, promise: Promise<T>, withinMs = 20_000): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const tooLate = new Promise<never>((_resolve, reject) => {
    timer = setTimeout(() => {
      reject(new Error(`waited ${withinMs} ms in vain for ${what}`));
    }, withinMs);
  });
  try {
    return await Promise.race([promise, tooLate]);
  } finally {
    clearTimeout(timer);
  }
}

/** Asks until the answer (compared as JSON) has stayed the same for `quietMs`, and returns it. */
export async function untilSettled<T>(what: string, ask: () => T | Promise<T>, quietMs: number): Promise<T> {
  let answer = await ask();
  let text = JSON.stringify(answer);
  let sinceMs = nowMs();
  const giveUpAtMs = sinceMs + quietMs + 20_000;
  while (nowMs() - sinceMs < quietMs) {
    if (nowMs() > giveUpAtMs) throw new Error(`${what} did not settle`);
    await letPass(20);
    answer = await ask();
    const newText = JSON.stringify(answer);
    if (newText !== text) {
      text = newText;
      sinceMs = nowMs();
    }
  }
  return answer;
}

/** Does `body` again and again, at least once, until the promise has settled. Returns the promise's value. */
export async function meanwhile<T>(promise: Promise<T>, body: () => Promise<void>): Promise<T> {
  const state = { settled: false };
  const noted = promise.finally(() => {
    state.settled = true;
  });
  // its failure is thrown by the last line, once the body stands still
  noted.catch(() => {});
  do await body();
  while (!state.settled);
  return noted;
}
