#include "metal.h"

/* MTLDataTypeBFloat, by number: headers before macOS 14 lack it. */
#define DATA_TYPE_BFLOAT ((MTLDataType)121)

/* Metal numbers the vectors of a scalar type right after it. */
typedef struct data_type {
  mps_data_base base;
  MTLDataType scalar;
  const char *names[4];
} data_type;

static const data_type data_types[] = {
    {MPS_DATA_BOOL, MTLDataTypeBool, {"bool", "bool2", "bool3", "bool4"}},
    {MPS_DATA_CHAR, MTLDataTypeChar, {"char", "char2", "char3", "char4"}},
    {MPS_DATA_UCHAR, MTLDataTypeUChar, {"uchar", "uchar2", "uchar3", "uchar4"}},
    {MPS_DATA_SHORT, MTLDataTypeShort, {"short", "short2", "short3", "short4"}},
    {MPS_DATA_USHORT, MTLDataTypeUShort, {"ushort", "ushort2", "ushort3", "ushort4"}},
    {MPS_DATA_INT, MTLDataTypeInt, {"int", "int2", "int3", "int4"}},
    {MPS_DATA_UINT, MTLDataTypeUInt, {"uint", "uint2", "uint3", "uint4"}},
    {MPS_DATA_LONG, MTLDataTypeLong, {"long", "long2", "long3", "long4"}},
    {MPS_DATA_ULONG, MTLDataTypeULong, {"ulong", "ulong2", "ulong3", "ulong4"}},
    {MPS_DATA_HALF, MTLDataTypeHalf, {"half", "half2", "half3", "half4"}},
    {MPS_DATA_BFLOAT, DATA_TYPE_BFLOAT, {"bfloat", "bfloat2", "bfloat3", "bfloat4"}},
    {MPS_DATA_FLOAT, MTLDataTypeFloat, {"float", "float2", "float3", "float4"}},
};

enum { TYPES = sizeof data_types / sizeof data_types[0] };

static const data_type *find(MTLDataType type) {
  for (int i = 0; i < TYPES; i++) {
    if (type >= data_types[i].scalar && type < data_types[i].scalar + 4) {
      return &data_types[i];
    }
  }
  return NULL;
}

uint32_t metal_data_type_from(MTLDataType type) {
  const data_type *found = find(type);
  if (found != NULL) {
    return found->base | (uint32_t)(type - found->scalar + 1) << 8;
  }
  switch (type) {
  case MTLDataTypeStruct:
    return MPS_DATA_STRUCT | 1 << 8;
  case MTLDataTypePointer:
    return MPS_DATA_POINTER | 1 << 8;
  default:
    return MPS_DATA_NONE;
  }
}

MTLDataType metal_data_type_to(uint32_t type) {
  uint32_t lanes = type >> 8;
  for (int i = 0; i < TYPES; i++) {
    if (data_types[i].base == (type & 0xff) && lanes >= 1 && lanes <= 4) {
      return data_types[i].scalar + (lanes - 1);
    }
  }
  return MTLDataTypeNone;
}

const char *metal_data_type_name(MTLDataType type) {
  const data_type *found = find(type);
  return found != NULL ? found->names[type - found->scalar] : "";
}
