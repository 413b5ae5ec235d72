/* The part of libdispatch that the Metal device uses. */
#ifndef STANDIN_DISPATCH_H
#define STANDIN_DISPATCH_H

#import <Foundation/Foundation.h>

@interface StandinDispatchObject : NSObject
@end
@class StandinDispatchQueue, StandinDispatchSemaphore, StandinDispatchData;

typedef void (^dispatch_block_t)(void);
typedef StandinDispatchQueue *dispatch_queue_t;
typedef StandinDispatchSemaphore *dispatch_semaphore_t;
typedef StandinDispatchData *dispatch_data_t;
typedef NSObject *dispatch_queue_attr_t;
typedef uint64_t dispatch_time_t;
typedef long dispatch_once_t;

#define DISPATCH_QUEUE_SERIAL ((dispatch_queue_attr_t)0)
#define DISPATCH_TIME_NOW ((dispatch_time_t)0)
#define DISPATCH_TIME_FOREVER (~(dispatch_time_t)0)
#define DISPATCH_DATA_DESTRUCTOR_DEFAULT ((dispatch_block_t)0)

dispatch_queue_t dispatch_queue_create(const char *label, dispatch_queue_attr_t attr);
void dispatch_async(dispatch_queue_t queue, dispatch_block_t block);
void dispatch_sync(dispatch_queue_t queue, dispatch_block_t block);
dispatch_semaphore_t dispatch_semaphore_create(intptr_t value);
intptr_t dispatch_semaphore_wait(dispatch_semaphore_t semaphore, dispatch_time_t timeout);
intptr_t dispatch_semaphore_signal(dispatch_semaphore_t semaphore);
dispatch_time_t dispatch_time(dispatch_time_t when, int64_t delta);
void dispatch_once(dispatch_once_t *predicate, dispatch_block_t block);
dispatch_data_t dispatch_data_create(const void *buffer, size_t size, dispatch_queue_t queue,
                                     dispatch_block_t destructor);
void dispatch_release(id object);

#endif
