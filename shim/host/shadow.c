#include "shadow.h"
#include "kernel_abi.h"

#include <stdlib.h>

#define PAGE_SHIFT 12
#define PAGE_CELLS ((1u << PAGE_SHIFT) / 4)

struct host_shadow_page {
  uintptr_t number;
  host_cell cells[PAGE_CELLS];
};

/* ---- pages ---- */

void host_shadow_open(host_shadow *shadow, uint64_t budget) {
  *shadow = (host_shadow){.budget = budget};
}

void host_shadow_close(host_shadow *shadow) {
  for (size_t i = 0; i < shadow->capacity; i++) {
    free(shadow->pages[i]);
  }
  free(shadow->pages);
}

/* Where the page is, or is to be. The table is never full. */
static host_shadow_page **find_place(host_shadow_page **pages, size_t capacity, uintptr_t number) {
  size_t at = (size_t)((uint64_t)number * UINT64_C(0x9e3779b97f4a7c15) >> 32) & (capacity - 1);
  while (pages[at] != NULL && pages[at]->number != number) {
    at = (at + 1) & (capacity - 1);
  }
  return &pages[at];
}

static bool grow(host_shadow *shadow) {
  size_t capacity = shadow->capacity == 0 ? 64 : shadow->capacity * 2;
  host_shadow_page **pages = calloc(capacity, sizeof(host_shadow_page *));
  if (pages == NULL) {
    return false;
  }
  for (size_t i = 0; i < shadow->capacity; i++) {
    if (shadow->pages[i] != NULL) {
      *find_place(pages, capacity, shadow->pages[i]->number) = shadow->pages[i];
    }
  }
  free(shadow->pages);
  shadow->pages = pages;
  shadow->capacity = capacity;
  return true;
}

static host_shadow_page *new_page(host_shadow *shadow, uintptr_t number) {
  if (shadow->budget < sizeof(host_shadow_page) || (shadow->count * 2 >= shadow->capacity && !grow(shadow))) {
    return NULL;
  }
  host_shadow_page *page = calloc(1, sizeof *page);
  if (page != NULL) {
    page->number = number;
    *find_place(shadow->pages, shadow->capacity, number) = page;
    shadow->count++;
    shadow->budget -= sizeof *page;
  }
  return page;
}

host_cell *host_shadow_cell(host_shadow *shadow, uintptr_t address) {
  uintptr_t number = address >> PAGE_SHIFT;
  host_shadow_page *page = shadow->last;
  if (page == NULL || page->number != number) {
    page = shadow->capacity != 0 ? *find_place(shadow->pages, shadow->capacity, number) : NULL;
    page = page != NULL ? page : new_page(shadow, number);
    shadow->last = page;
  }
  return page != NULL ? &page->cells[address / 4 % PAGE_CELLS] : NULL;
}

/* ---- races ---- */

/* Nothing says which of the two comes first. */
static bool is_unordered(const host_stamp *before, const host_access *access) {
  const host_stamp *now = &access->stamp;
  if (before->group == 0) {
    return false;
  }
  if (before->group != now->group) {
    return !access->is_shared && !access->trusts_groups;
  }
  if (before->thread == now->thread || before->barriers != now->barriers || access->trusts_threads) {
    return false;
  }
  bool same_simdgroup = before->thread / MSLC_SIMD_WIDTH == now->thread / MSLC_SIMD_WIDTH;
  return !same_simdgroup || before->collectives == now->collectives;
}

static bool races(const host_stamp *before, const host_access *access) {
  bool both_atomic = before->is_atomic && access->stamp.is_atomic;
  return (before->bytes & access->stamp.bytes) != 0 && !both_atomic && is_unordered(before, access);
}

bool host_shadow_note(host_cell *cell, const host_access *access, host_stamp *other, bool *other_writes) {
  const host_stamp *before = races(&cell->writer, access) ? &cell->writer : NULL;
  *other_writes = before != NULL;
  for (int i = 0; access->writes && before == NULL && i < 2; i++) {
    before = races(&cell->readers[i], access) ? &cell->readers[i] : NULL;
  }
  bool found = before != NULL;
  if (found) {
    *other = *before;
  }
  if (access->writes) {
    cell->writer = access->stamp;
  } else {
    cell->readers[is_unordered(&cell->readers[0], access)] = access->stamp;
  }
  return found;
}
