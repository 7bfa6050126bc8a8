package hpack

import (
	"encoding/binary"
	"slices"
)

// codeLens are the lengths in bits of the Huffman codes of all bytes, and of EOS
// (RFC 7541, B). The code is canonical: lengths are all there is to it.
var codeLens = [257]uint8{
	13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28,
	28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
	6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6,
	5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
	13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
	7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
	15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5,
	6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
	20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
	24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
	22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23,
	21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
	26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25,
	19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
	20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
	26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
	30,
}

const (
	eos      = 256
	fastBits = 9 // covers all letters and digits: 1 KiB of table
	maxBits  = 30
)

// code is made of codeLens once.
var code = func() (c struct {
	bits   [257]uint32
	fast   [1 << fastBits]uint16 // symbol<<4 | length for codes up to fastBits; 0: longer
	sorted [257]uint16           // symbols by code
	// Of the codes of each length: the end of their range, as the upper 32 of
	// 64 bits, and what to add to a code for its place in sorted.
	end   [maxBits + 1]uint64
	place [maxBits + 1]int32
}) {
	next, n := uint32(0), 0
	for length := uint(1); length <= maxBits; length++ {
		next <<= 1
		c.place[length] = int32(n) - int32(next)
		for symbol, l := range codeLens {
			if uint(l) != length {
				continue
			}
			c.bits[symbol] = next
			c.sorted[n] = uint16(symbol)
			if length <= fastBits {
				for i := range uint32(1) << (fastBits - length) {
					c.fast[next<<(fastBits-length)+i] = uint16(symbol)<<4 | uint16(length)
				}
			}
			next++
			n++
		}
		c.end[length] = uint64(next) << (32 - length)
	}
	return c
}()

// appendDecoded appends what src means; false: it is no Huffman code, or its
// padding is not what it must be (RFC 7541, 5.2).
func appendDecoded(dst, src []byte) ([]byte, bool) {
	dst = slices.Grow(dst, len(src)*8/5) // no code is shorter than 5 bits
	var acc uint64                       // the next bits, from the top
	var bits uint                        // how many of them are valid
	for i := 0; ; {
		if len(src)-i >= 8 {
			acc |= binary.BigEndian.Uint64(src[i:]) >> bits
			n := (64 - bits) >> 3
			i += int(n)
			bits += 8 * n
		} else {
			for ; bits <= 56 && i < len(src); i++ {
				acc |= uint64(src[i]) << (56 - bits)
				bits += 8
			}
		}
		e := code.fast[acc>>(64-fastBits)]
		for e != 0 && uint(e&15) <= bits {
			dst = append(dst, byte(e>>4))
			acc <<= e & 15
			bits -= uint(e & 15)
			e = code.fast[acc>>(64-fastBits)]
		}
		if bits >= maxBits || i == len(src) {
			symbol, n := longCode(acc)
			switch {
			case n > bits: // there is no more
				// What is left is the beginning of EOS, shorter than a byte.
				return dst, bits < 8 && acc>>(64-bits) == 1<<bits-1
			case symbol == eos:
				return dst, false
			}
			dst = append(dst, byte(symbol))
			acc <<= n
			bits -= n
		}
	}
}

// longCode finds the code at the top of acc.
func longCode(acc uint64) (symbol uint16, length uint) {
	top := acc >> 32
	length = 5
	for length < maxBits && top >= code.end[length] {
		length++
	}
	return code.sorted[int32(top>>(32-length))+code.place[length]], length
}

// codedLen is how many bytes s takes in Huffman code.
func codedLen(s []byte) int {
	n := 0
	for _, c := range s {
		n += int(codeLens[c])
	}
	return (n + 7) / 8
}

func appendCoded(dst, s []byte) []byte {
	var acc uint64
	var bits uint
	for _, c := range s {
		n := uint(codeLens[c])
		acc = acc<<n | uint64(code.bits[c])
		bits += n
		if bits >= 32 {
			bits -= 32
			dst = binary.BigEndian.AppendUint32(dst, uint32(acc>>bits))
		}
	}
	for bits >= 8 {
		bits -= 8
		dst = append(dst, byte(acc>>bits))
	}
	if bits > 0 {
		dst = append(dst, byte(acc<<(8-bits))|byte(0xff>>bits))
	}
	return dst
}
