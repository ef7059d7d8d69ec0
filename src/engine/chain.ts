/** A doubly linked list whose members know their place: whoever leaves from the middle does so without a search. */

export class Link<T> {
  readonly item: T;
  next: Link<T> | null = null;
  previous: Link<T> | null = null;

  constructor(item: T) {
    this.item = item;
  }
}

export class Chain<T> implements Iterable<T> {
  first: Link<T> | null = null;
  last: Link<T> | null = null;
  count = 0;

  append(item: T): Link<T> {
    const link = new Link(item);
    link.previous = this.last;
    if (this.last === null) this.first = link;
    else this.last.next = link;
    this.last = link;
    this.count += 1;
    return link;
  }

  /** Takes out a link that is in this chain. */
  remove(link: Link<T>): void {
    if (link.previous === null) this.first = link.next;
    else link.previous.next = link.next;
    if (link.next === null) this.last = link.previous;
    else link.next.previous = link.previous;
    link.next = null;
    link.previous = null;
    this.count -= 1;
  }

  *[Symbol.iterator](): Iterator<T> {
    for (let link = this.first; link !== null; link = link.next) yield link.item;
  }
}
