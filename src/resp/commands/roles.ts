import { unreachable } from "../../engine/invariant.js";
import type { RoleName } from "../../ports.js";

/**
 * Leasehold's roles in Redis's words. A node that is loading holds the role already, as a loading Redis master does (clients
 * look at `loading:` for the rest); one without the role is a replica that has no link.
 */
export function redisRole(role: RoleName): "master" | "slave" {
  switch (role) {
    case "primary":
    case "loading":
      return "master";
    case "standby":
    case "fenced":
    case "stopped":
      return "slave";
    default:
      return unreachable(role);
  }
}
