//go:build race

package peer

const raceDetector = true
