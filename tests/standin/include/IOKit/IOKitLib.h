/* The part of IOKit and CoreFoundation that tells a GPU's cores. */
#ifndef STANDIN_IOKIT_H
#define STANDIN_IOKIT_H

#include <stdint.h>

typedef unsigned int mach_port_t;
typedef mach_port_t io_object_t, io_service_t, io_registry_entry_t;
typedef int kern_return_t;
typedef uint32_t IOOptionBits;
typedef const void *CFTypeRef;
typedef const struct __CFString *CFStringRef;
typedef const struct __CFAllocator *CFAllocatorRef;
typedef const struct __CFDictionary *CFDictionaryRef;
typedef struct __CFDictionary *CFMutableDictionaryRef;

#define IO_OBJECT_NULL ((io_object_t)0)
#define kIOMainPortDefault ((mach_port_t)0)
#define kCFAllocatorDefault ((CFAllocatorRef)0)

CFMutableDictionaryRef IORegistryEntryIDMatching(uint64_t entryID);
/* Consumes the dictionary. */
io_service_t IOServiceGetMatchingService(mach_port_t mainPort, CFDictionaryRef matching);
CFTypeRef IORegistryEntryCreateCFProperty(io_registry_entry_t entry, CFStringRef key, CFAllocatorRef allocator,
                                          IOOptionBits options);
kern_return_t IOObjectRelease(io_object_t object);

#endif
