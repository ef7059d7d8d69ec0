/** Replaces a method for the time of a run: how deliberate bugs get in. Returns what puts the original back. */
export function replace<Owner extends object, Name extends keyof Owner>(
  owner: Owner,
  name: Name,
  make: (original: Owner[Name]) => Owner[Name],
): () => void {
  const original = owner[name];
  owner[name] = make(original);
  return () => {
    owner[name] = original;
  };
}
