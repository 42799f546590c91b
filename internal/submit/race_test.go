//go:build race

package submit

const raced = true
