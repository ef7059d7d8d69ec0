import type { Coordinator } from "./coordinator.js";
import type { Backend } from "./resp/backend.js";

/** The coordinator as the RESP surface asks for it. `shutdown` is the process's own business. */
export function backendOf(coordinator: Coordinator, shutdown: () => void): Backend {
  return {
    submit: (command, session, ticket) => coordinator.submit(command, session, ticket),
    atomically: (session, ticket, work) => coordinator.atomically(session, ticket, work),
    revisionOf: (databaseIndex, key) => coordinator.revisionOf(databaseIndex, key),
    unblock: (session, reply) => coordinator.unblock(session, reply),
    onRoom: (callback) => coordinator.onRoom(callback),
    forget: (session) => coordinator.forget(session),
    report: () => coordinator.report(),
    stepDown: (except, done) => coordinator.stepDown(except, done),
    takeRole: (done) => coordinator.takeRole(done),
    shutdown,
  };
}
