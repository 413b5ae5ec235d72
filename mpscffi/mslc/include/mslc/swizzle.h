// The swizzles of vectors of 2, 3 and 4 components, each by its two names. Written by generate_swizzles.py.
//
// READ(count, xyzw, rgba) is said of the swizzles that name a component twice, WRITE(count, xyzw, rgba) of the others:
// only those can stand on the left of an assignment.
#pragma once

// clang-format off
#define MSLC_SWIZZLES_2(READ, WRITE) \
  READ(2, xx, rr) WRITE(2, xy, rg) WRITE(2, yx, gr) READ(2, yy, gg) READ(3, xxx, rrr) READ(3, xxy, rrg) \
  READ(3, xyx, rgr) READ(3, xyy, rgg) READ(3, yxx, grr) READ(3, yxy, grg) READ(3, yyx, ggr) READ(3, yyy, ggg) \
  READ(4, xxxx, rrrr) READ(4, xxxy, rrrg) READ(4, xxyx, rrgr) READ(4, xxyy, rrgg) READ(4, xyxx, rgrr) \
  READ(4, xyxy, rgrg) READ(4, xyyx, rggr) READ(4, xyyy, rggg) READ(4, yxxx, grrr) READ(4, yxxy, grrg) \
  READ(4, yxyx, grgr) READ(4, yxyy, grgg) READ(4, yyxx, ggrr) READ(4, yyxy, ggrg) READ(4, yyyx, gggr) \
  READ(4, yyyy, gggg)
// clang-format on

// clang-format off
#define MSLC_SWIZZLES_3(READ, WRITE) \
  READ(2, xx, rr) WRITE(2, xy, rg) WRITE(2, xz, rb) WRITE(2, yx, gr) READ(2, yy, gg) WRITE(2, yz, gb) \
  WRITE(2, zx, br) WRITE(2, zy, bg) READ(2, zz, bb) READ(3, xxx, rrr) READ(3, xxy, rrg) READ(3, xxz, rrb) \
  READ(3, xyx, rgr) READ(3, xyy, rgg) WRITE(3, xyz, rgb) READ(3, xzx, rbr) WRITE(3, xzy, rbg) \
  READ(3, xzz, rbb) READ(3, yxx, grr) READ(3, yxy, grg) WRITE(3, yxz, grb) READ(3, yyx, ggr) READ(3, yyy, ggg) \
  READ(3, yyz, ggb) WRITE(3, yzx, gbr) READ(3, yzy, gbg) READ(3, yzz, gbb) READ(3, zxx, brr) \
  WRITE(3, zxy, brg) READ(3, zxz, brb) WRITE(3, zyx, bgr) READ(3, zyy, bgg) READ(3, zyz, bgb) \
  READ(3, zzx, bbr) READ(3, zzy, bbg) READ(3, zzz, bbb) READ(4, xxxx, rrrr) READ(4, xxxy, rrrg) \
  READ(4, xxxz, rrrb) READ(4, xxyx, rrgr) READ(4, xxyy, rrgg) READ(4, xxyz, rrgb) READ(4, xxzx, rrbr) \
  READ(4, xxzy, rrbg) READ(4, xxzz, rrbb) READ(4, xyxx, rgrr) READ(4, xyxy, rgrg) READ(4, xyxz, rgrb) \
  READ(4, xyyx, rggr) READ(4, xyyy, rggg) READ(4, xyyz, rggb) READ(4, xyzx, rgbr) READ(4, xyzy, rgbg) \
  READ(4, xyzz, rgbb) READ(4, xzxx, rbrr) READ(4, xzxy, rbrg) READ(4, xzxz, rbrb) READ(4, xzyx, rbgr) \
  READ(4, xzyy, rbgg) READ(4, xzyz, rbgb) READ(4, xzzx, rbbr) READ(4, xzzy, rbbg) READ(4, xzzz, rbbb) \
  READ(4, yxxx, grrr) READ(4, yxxy, grrg) READ(4, yxxz, grrb) READ(4, yxyx, grgr) READ(4, yxyy, grgg) \
  READ(4, yxyz, grgb) READ(4, yxzx, grbr) READ(4, yxzy, grbg) READ(4, yxzz, grbb) READ(4, yyxx, ggrr) \
  READ(4, yyxy, ggrg) READ(4, yyxz, ggrb) READ(4, yyyx, gggr) READ(4, yyyy, gggg) READ(4, yyyz, gggb) \
  READ(4, yyzx, ggbr) READ(4, yyzy, ggbg) READ(4, yyzz, ggbb) READ(4, yzxx, gbrr) READ(4, yzxy, gbrg) \
  READ(4, yzxz, gbrb) READ(4, yzyx, gbgr) READ(4, yzyy, gbgg) READ(4, yzyz, gbgb) READ(4, yzzx, gbbr) \
  READ(4, yzzy, gbbg) READ(4, yzzz, gbbb) READ(4, zxxx, brrr) READ(4, zxxy, brrg) READ(4, zxxz, brrb) \
  READ(4, zxyx, brgr) READ(4, zxyy, brgg) READ(4, zxyz, brgb) READ(4, zxzx, brbr) READ(4, zxzy, brbg) \
  READ(4, zxzz, brbb) READ(4, zyxx, bgrr) READ(4, zyxy, bgrg) READ(4, zyxz, bgrb) READ(4, zyyx, bggr) \
  READ(4, zyyy, bggg) READ(4, zyyz, bggb) READ(4, zyzx, bgbr) READ(4, zyzy, bgbg) READ(4, zyzz, bgbb) \
  READ(4, zzxx, bbrr) READ(4, zzxy, bbrg) READ(4, zzxz, bbrb) READ(4, zzyx, bbgr) READ(4, zzyy, bbgg) \
  READ(4, zzyz, bbgb) READ(4, zzzx, bbbr) READ(4, zzzy, bbbg) READ(4, zzzz, bbbb)
// clang-format on

// clang-format off
#define MSLC_SWIZZLES_4(READ, WRITE) \
  READ(2, xx, rr) WRITE(2, xy, rg) WRITE(2, xz, rb) WRITE(2, xw, ra) WRITE(2, yx, gr) READ(2, yy, gg) \
  WRITE(2, yz, gb) WRITE(2, yw, ga) WRITE(2, zx, br) WRITE(2, zy, bg) READ(2, zz, bb) WRITE(2, zw, ba) \
  WRITE(2, wx, ar) WRITE(2, wy, ag) WRITE(2, wz, ab) READ(2, ww, aa) READ(3, xxx, rrr) READ(3, xxy, rrg) \
  READ(3, xxz, rrb) READ(3, xxw, rra) READ(3, xyx, rgr) READ(3, xyy, rgg) WRITE(3, xyz, rgb) \
  WRITE(3, xyw, rga) READ(3, xzx, rbr) WRITE(3, xzy, rbg) READ(3, xzz, rbb) WRITE(3, xzw, rba) \
  READ(3, xwx, rar) WRITE(3, xwy, rag) WRITE(3, xwz, rab) READ(3, xww, raa) READ(3, yxx, grr) \
  READ(3, yxy, grg) WRITE(3, yxz, grb) WRITE(3, yxw, gra) READ(3, yyx, ggr) READ(3, yyy, ggg) \
  READ(3, yyz, ggb) READ(3, yyw, gga) WRITE(3, yzx, gbr) READ(3, yzy, gbg) READ(3, yzz, gbb) \
  WRITE(3, yzw, gba) WRITE(3, ywx, gar) READ(3, ywy, gag) WRITE(3, ywz, gab) READ(3, yww, gaa) \
  READ(3, zxx, brr) WRITE(3, zxy, brg) READ(3, zxz, brb) WRITE(3, zxw, bra) WRITE(3, zyx, bgr) \
  READ(3, zyy, bgg) READ(3, zyz, bgb) WRITE(3, zyw, bga) READ(3, zzx, bbr) READ(3, zzy, bbg) READ(3, zzz, bbb) \
  READ(3, zzw, bba) WRITE(3, zwx, bar) WRITE(3, zwy, bag) READ(3, zwz, bab) READ(3, zww, baa) \
  READ(3, wxx, arr) WRITE(3, wxy, arg) WRITE(3, wxz, arb) READ(3, wxw, ara) WRITE(3, wyx, agr) \
  READ(3, wyy, agg) WRITE(3, wyz, agb) READ(3, wyw, aga) WRITE(3, wzx, abr) WRITE(3, wzy, abg) \
  READ(3, wzz, abb) READ(3, wzw, aba) READ(3, wwx, aar) READ(3, wwy, aag) READ(3, wwz, aab) READ(3, www, aaa) \
  READ(4, xxxx, rrrr) READ(4, xxxy, rrrg) READ(4, xxxz, rrrb) READ(4, xxxw, rrra) READ(4, xxyx, rrgr) \
  READ(4, xxyy, rrgg) READ(4, xxyz, rrgb) READ(4, xxyw, rrga) READ(4, xxzx, rrbr) READ(4, xxzy, rrbg) \
  READ(4, xxzz, rrbb) READ(4, xxzw, rrba) READ(4, xxwx, rrar) READ(4, xxwy, rrag) READ(4, xxwz, rrab) \
  READ(4, xxww, rraa) READ(4, xyxx, rgrr) READ(4, xyxy, rgrg) READ(4, xyxz, rgrb) READ(4, xyxw, rgra) \
  READ(4, xyyx, rggr) READ(4, xyyy, rggg) READ(4, xyyz, rggb) READ(4, xyyw, rgga) READ(4, xyzx, rgbr) \
  READ(4, xyzy, rgbg) READ(4, xyzz, rgbb) WRITE(4, xyzw, rgba) READ(4, xywx, rgar) READ(4, xywy, rgag) \
  WRITE(4, xywz, rgab) READ(4, xyww, rgaa) READ(4, xzxx, rbrr) READ(4, xzxy, rbrg) READ(4, xzxz, rbrb) \
  READ(4, xzxw, rbra) READ(4, xzyx, rbgr) READ(4, xzyy, rbgg) READ(4, xzyz, rbgb) WRITE(4, xzyw, rbga) \
  READ(4, xzzx, rbbr) READ(4, xzzy, rbbg) READ(4, xzzz, rbbb) READ(4, xzzw, rbba) READ(4, xzwx, rbar) \
  WRITE(4, xzwy, rbag) READ(4, xzwz, rbab) READ(4, xzww, rbaa) READ(4, xwxx, rarr) READ(4, xwxy, rarg) \
  READ(4, xwxz, rarb) READ(4, xwxw, rara) READ(4, xwyx, ragr) READ(4, xwyy, ragg) WRITE(4, xwyz, ragb) \
  READ(4, xwyw, raga) READ(4, xwzx, rabr) WRITE(4, xwzy, rabg) READ(4, xwzz, rabb) READ(4, xwzw, raba) \
  READ(4, xwwx, raar) READ(4, xwwy, raag) READ(4, xwwz, raab) READ(4, xwww, raaa) READ(4, yxxx, grrr) \
  READ(4, yxxy, grrg) READ(4, yxxz, grrb) READ(4, yxxw, grra) READ(4, yxyx, grgr) READ(4, yxyy, grgg) \
  READ(4, yxyz, grgb) READ(4, yxyw, grga) READ(4, yxzx, grbr) READ(4, yxzy, grbg) READ(4, yxzz, grbb) \
  WRITE(4, yxzw, grba) READ(4, yxwx, grar) READ(4, yxwy, grag) WRITE(4, yxwz, grab) READ(4, yxww, graa) \
  READ(4, yyxx, ggrr) READ(4, yyxy, ggrg) READ(4, yyxz, ggrb) READ(4, yyxw, ggra) READ(4, yyyx, gggr) \
  READ(4, yyyy, gggg) READ(4, yyyz, gggb) READ(4, yyyw, ggga) READ(4, yyzx, ggbr) READ(4, yyzy, ggbg) \
  READ(4, yyzz, ggbb) READ(4, yyzw, ggba) READ(4, yywx, ggar) READ(4, yywy, ggag) READ(4, yywz, ggab) \
  READ(4, yyww, ggaa) READ(4, yzxx, gbrr) READ(4, yzxy, gbrg) READ(4, yzxz, gbrb) WRITE(4, yzxw, gbra) \
  READ(4, yzyx, gbgr) READ(4, yzyy, gbgg) READ(4, yzyz, gbgb) READ(4, yzyw, gbga) READ(4, yzzx, gbbr) \
  READ(4, yzzy, gbbg) READ(4, yzzz, gbbb) READ(4, yzzw, gbba) WRITE(4, yzwx, gbar) READ(4, yzwy, gbag) \
  READ(4, yzwz, gbab) READ(4, yzww, gbaa) READ(4, ywxx, garr) READ(4, ywxy, garg) WRITE(4, ywxz, garb) \
  READ(4, ywxw, gara) READ(4, ywyx, gagr) READ(4, ywyy, gagg) READ(4, ywyz, gagb) READ(4, ywyw, gaga) \
  WRITE(4, ywzx, gabr) READ(4, ywzy, gabg) READ(4, ywzz, gabb) READ(4, ywzw, gaba) READ(4, ywwx, gaar) \
  READ(4, ywwy, gaag) READ(4, ywwz, gaab) READ(4, ywww, gaaa) READ(4, zxxx, brrr) READ(4, zxxy, brrg) \
  READ(4, zxxz, brrb) READ(4, zxxw, brra) READ(4, zxyx, brgr) READ(4, zxyy, brgg) READ(4, zxyz, brgb) \
  WRITE(4, zxyw, brga) READ(4, zxzx, brbr) READ(4, zxzy, brbg) READ(4, zxzz, brbb) READ(4, zxzw, brba) \
  READ(4, zxwx, brar) WRITE(4, zxwy, brag) READ(4, zxwz, brab) READ(4, zxww, braa) READ(4, zyxx, bgrr) \
  READ(4, zyxy, bgrg) READ(4, zyxz, bgrb) WRITE(4, zyxw, bgra) READ(4, zyyx, bggr) READ(4, zyyy, bggg) \
  READ(4, zyyz, bggb) READ(4, zyyw, bgga) READ(4, zyzx, bgbr) READ(4, zyzy, bgbg) READ(4, zyzz, bgbb) \
  READ(4, zyzw, bgba) WRITE(4, zywx, bgar) READ(4, zywy, bgag) READ(4, zywz, bgab) READ(4, zyww, bgaa) \
  READ(4, zzxx, bbrr) READ(4, zzxy, bbrg) READ(4, zzxz, bbrb) READ(4, zzxw, bbra) READ(4, zzyx, bbgr) \
  READ(4, zzyy, bbgg) READ(4, zzyz, bbgb) READ(4, zzyw, bbga) READ(4, zzzx, bbbr) READ(4, zzzy, bbbg) \
  READ(4, zzzz, bbbb) READ(4, zzzw, bbba) READ(4, zzwx, bbar) READ(4, zzwy, bbag) READ(4, zzwz, bbab) \
  READ(4, zzww, bbaa) READ(4, zwxx, barr) WRITE(4, zwxy, barg) READ(4, zwxz, barb) READ(4, zwxw, bara) \
  WRITE(4, zwyx, bagr) READ(4, zwyy, bagg) READ(4, zwyz, bagb) READ(4, zwyw, baga) READ(4, zwzx, babr) \
  READ(4, zwzy, babg) READ(4, zwzz, babb) READ(4, zwzw, baba) READ(4, zwwx, baar) READ(4, zwwy, baag) \
  READ(4, zwwz, baab) READ(4, zwww, baaa) READ(4, wxxx, arrr) READ(4, wxxy, arrg) READ(4, wxxz, arrb) \
  READ(4, wxxw, arra) READ(4, wxyx, argr) READ(4, wxyy, argg) WRITE(4, wxyz, argb) READ(4, wxyw, arga) \
  READ(4, wxzx, arbr) WRITE(4, wxzy, arbg) READ(4, wxzz, arbb) READ(4, wxzw, arba) READ(4, wxwx, arar) \
  READ(4, wxwy, arag) READ(4, wxwz, arab) READ(4, wxww, araa) READ(4, wyxx, agrr) READ(4, wyxy, agrg) \
  WRITE(4, wyxz, agrb) READ(4, wyxw, agra) READ(4, wyyx, aggr) READ(4, wyyy, aggg) READ(4, wyyz, aggb) \
  READ(4, wyyw, agga) WRITE(4, wyzx, agbr) READ(4, wyzy, agbg) READ(4, wyzz, agbb) READ(4, wyzw, agba) \
  READ(4, wywx, agar) READ(4, wywy, agag) READ(4, wywz, agab) READ(4, wyww, agaa) READ(4, wzxx, abrr) \
  WRITE(4, wzxy, abrg) READ(4, wzxz, abrb) READ(4, wzxw, abra) WRITE(4, wzyx, abgr) READ(4, wzyy, abgg) \
  READ(4, wzyz, abgb) READ(4, wzyw, abga) READ(4, wzzx, abbr) READ(4, wzzy, abbg) READ(4, wzzz, abbb) \
  READ(4, wzzw, abba) READ(4, wzwx, abar) READ(4, wzwy, abag) READ(4, wzwz, abab) READ(4, wzww, abaa) \
  READ(4, wwxx, aarr) READ(4, wwxy, aarg) READ(4, wwxz, aarb) READ(4, wwxw, aara) READ(4, wwyx, aagr) \
  READ(4, wwyy, aagg) READ(4, wwyz, aagb) READ(4, wwyw, aaga) READ(4, wwzx, aabr) READ(4, wwzy, aabg) \
  READ(4, wwzz, aabb) READ(4, wwzw, aaba) READ(4, wwwx, aaar) READ(4, wwwy, aaag) READ(4, wwwz, aaab) \
  READ(4, wwww, aaaa)
// clang-format on
