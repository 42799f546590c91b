package bucket

// What only tests of this package need.
const PartSize = partSize

// OpenPatience is Open with another time for a connection that moves no byte.
var OpenPatience = open
